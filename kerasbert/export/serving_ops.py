"""The ops that a served graph may contain: those of a stock TensorFlow Serving from 2.12 on.

Each op is in the registry of tensorflow-cpu 2.12.1 or tensorflow-text 2.12.1, with a kernel. Ops
for Python functions, XLA calls, randomness, training and devices are left out.
"""

TENSORFLOW_OPS = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 All Any ArgMax ArgMin AsString Asin Asinh Assert AssignVariableOp
    Atan Atan2 Atanh BatchMatMul BatchMatMulV2 BatchMatMulV3 BiasAdd Bincount Bitcast BitwiseAnd
    BitwiseOr BitwiseXor BroadcastArgs BroadcastTo Bucketize Case Cast Ceil CheckNumerics
    ClipByValue Concat ConcatOffset ConcatV2 Const Conv2D Cos Cosh Cumprod Cumsum DecodeBase64
    DecodeRaw DenseBincount Diag DiagPart DisableCopyOnRead Div DivNoNan DynamicPartition
    DynamicStitch EditDistance Einsum Elu EmptyTensorList EncodeBase64 EnsureShape Equal Erf Erfc
    Exp ExpandDims Expm1 Fill Fingerprint Floor FloorDiv FloorMod FusedBatchNormV3 Gather GatherNd
    GatherV2 Greater GreaterEqual HashTableV2 Identity IdentityN If InitializeTableFromTextFileV2
    InitializeTableV2 Invert InvertPermutation IsFinite IsInf IsNan L2Loss LeakyRelu LeftShift Less
    LessEqual LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr LookupTableExportV2
    LookupTableFindV2 LookupTableImportV2 LookupTableInsertV2 LookupTableSizeV2 LowerBound MatMul
    MatrixBandPart MatrixDiagV3 Max Maximum Mean MergeV2Checkpoints Min Minimum Mod Mul MulNoNan
    MutableDenseHashTableV2 MutableHashTableOfTensorsV2 MutableHashTableV2 Neg NoOp NotEqual OneHot
    OnesLike Pack Pad PadV2 ParallelDynamicStitch ParseExampleV2 PartitionedCall Placeholder
    PlaceholderWithDefault PopulationCount Pow PreventGradient Prod RaggedBincount RaggedGather
    RaggedRange RaggedTensorFromVariant RaggedTensorToTensor RaggedTensorToVariant Range Rank
    ReadVariableOp RealDiv Reciprocal ReduceJoin RegexFullMatch RegexReplace Relu Relu6 Reshape
    ResourceGather ResourceGatherNd RestoreV2 Reverse ReverseSequence ReverseV2 RightShift Rint Roll
    Round Rsqrt SaveV2 ScatterNd SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum Select
    SelectV2 Selu Shape ShapeN ShardedFilename Sigmoid Sign Sin Sinh Size Slice Snapshot Softmax
    Softplus Softsign SparseToDense Split SplitV Sqrt Square SquaredDifference Squeeze
    StatefulPartitionedCall StatelessIf StatelessWhile StaticRegexFullMatch StaticRegexReplace
    StopGradient StridedSlice StringFormat StringJoin StringLength StringLower StringNGrams
    StringSplit StringSplitV2 StringStrip StringToHashBucketFast StringToNumber StringUpper Sub
    Substr Sum Tan Tanh TensorListConcatV2 TensorListElementShape TensorListFromTensor
    TensorListGather TensorListGetItem TensorListLength TensorListPushBack TensorListReserve
    TensorListResize TensorListSetItem TensorListStack TensorScatterAdd TensorScatterMax
    TensorScatterMin TensorScatterUpdate Tile TopK TopKV2 Transpose TruncateDiv TruncateMod
    UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode UnicodeScript UnicodeTranscode Unique
    UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex UnsortedSegmentJoin
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound
    VarHandleOp VarIsInitializedOp Where While Xdivy Xlog1py Xlogy ZerosLike
    """.split()
)

TENSORFLOW_TEXT_OPS = frozenset(
    """
    CaseFoldUTF8 FastBertNormalize FastWordpieceTokenizeWithOffsets FindSourceOffsets
    NormalizeUTF8 NormalizeUTF8WithOffsetsMap RegexSplitWithOffsets SentencepieceDetokenizeOp
    SentencepieceIdToStringOp SentencepieceOp SentencepieceStringToIdOp SentencepieceTokenizeOp
    SentencepieceTokenizeWithOffsetsOp SentencepieceVocabSizeOp TFText>FastSentencepieceTokenize
    TFText>FastWordpieceDetokenize
    """.split()
)
