from kerasbert.data.batching import batch_dataset as batch_dataset
from kerasbert.data.batching import bucket_length as bucket_length
from kerasbert.data.batching import buckets_up_to as buckets_up_to
from kerasbert.data.batching import given_batches as given_batches
from kerasbert.data.batching import restore_order as restore_order
from kerasbert.data.batching import similar_length_batches as similar_length_batches
from kerasbert.data.batching import sorted_batches as sorted_batches
from kerasbert.data.masking import mask_tokens as mask_tokens
