"""Send texts to TensorFlow Serving's gRPC API: python grpc_client.py localhost:8500 spam "A text."

Prints the outputs of each text as a line of JSON. Needs tensorflow-serving-api.
"""

import json
import sys

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc


def predict(address, model, texts):
    """Return a dict of outputs for each text."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "serving_default"
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts, tf.string))
    with grpc.insecure_channel(address) as channel:
        service = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        response = service.Predict(request, timeout=60)
    outputs = {name: tf.make_ndarray(x) for name, x in response.outputs.items()}
    return [{name: plain(x[row]) for name, x in outputs.items()} for row in range(len(texts))]


def plain(x):
    """Convert an array or a string of bytes to lists and strings."""
    x = x.tolist() if hasattr(x, "tolist") else x
    if isinstance(x, bytes):
        return x.decode()
    return [plain(item) for item in x] if isinstance(x, list) else x


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(f"Usage: python {sys.argv[0]} HOST:PORT MODEL TEXT [TEXT ...]")
    try:
        rows = predict(sys.argv[1], sys.argv[2], sys.argv[3:])
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))
