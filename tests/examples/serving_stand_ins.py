"""Servers with the APIs of TensorFlow Serving and Triton, for tests of their clients.

They run the exported files with the real messages, TensorFlow and ONNX Runtime. Package registries
have neither server.
"""

import concurrent.futures
import contextlib
import http.server
import json
import os
import threading

import grpc
import numpy as np

from kerasbert.base import runtimes


class TensorFlowServing:
    """SavedModels by name, loaded into sessions as by the server."""

    def __init__(self, paths):
        self.models = {name: runtimes.saved_model(path) for name, path in paths.items()}

    def run(self, name, signature, inputs):
        if name not in self.models:
            raise KeyError(f"Servable not found for request: Latest({name})")
        return self.models[name](signature)(inputs)

    def Predict(self, request, context):
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        inputs = {name: tf.make_ndarray(x) for name, x in request.inputs.items()}
        spec = request.model_spec
        try:
            found = self.run(spec.name, spec.signature_name or "serving_default", inputs)
        except KeyError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, error.args[0])
        response = predict_pb2.PredictResponse()
        for name, x in found.items():
            # The server writes numbers into fields of their type, `make_tensor_proto` as bytes.
            tensor = response.outputs[name]
            tensor.CopyFrom(tf.make_tensor_proto(x))
            if tensor.tensor_content:
                field = {"f": tensor.float_val, "i": tensor.int_val}[x.dtype.kind]
                field.extend(x.ravel().tolist())
                tensor.tensor_content = b""
        return response

    def respond(self, path, body):
        """Return the status and the JSON of a REST request, in the row format."""
        name = path.removeprefix("/v1/models/").removesuffix(":predict")
        rows = json.loads(body)["instances"]
        rows = [row if isinstance(row, dict) else {"text": row} for row in rows]
        inputs = {key: np.array([row[key] for row in rows], object) for key in rows[0]}
        try:
            found = self.run(name, "serving_default", inputs)
        except KeyError as error:
            return 404, {"error": error.args[0]}
        found = {key: _plain(x) for key, x in found.items()}
        return 200, {"predictions": [{k: x[i] for k, x in found.items()} for i in range(len(rows))]}


def _plain(x):
    x = x.tolist() if hasattr(x, "tolist") else x
    if isinstance(x, bytes):
        return x.decode()
    return [_plain(one) for one in x] if isinstance(x, list) else x


@contextlib.contextmanager
def _grpc_server(add):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


@contextlib.contextmanager
def tensorflow_serving(paths):
    """Serve SavedModels; yield the addresses of the gRPC and the REST API."""
    from tensorflow_serving.apis import prediction_service_pb2_grpc as service

    models = TensorFlowServing(paths)

    class Service(service.PredictionServiceServicer):
        Predict = staticmethod(models.Predict)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, found = models.respond(self.path, body)
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    rest = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    rest.daemon_threads = True
    threading.Thread(target=rest.serve_forever, daemon=True).start()

    def add(server):
        service.add_PredictionServiceServicer_to_server(Service(), server)

    with _grpc_server(add) as address:
        yield address, f"127.0.0.1:{rest.server_port}"
    rest.shutdown()
    rest.server_close()


@contextlib.contextmanager
def triton(folder):
    """Serve a model of Triton's repository as its `config.pbtxt` says; yield the gRPC address."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

    with open(os.path.join(folder, "config.pbtxt"), encoding="utf-8") as file:
        config = text_format.Parse(file.read(), model_config_pb2.ModelConfig())
    run = runtimes.onnx_runtime(os.path.join(folder, "1", "model.onnx"))
    kinds = {"INT32": "int32", "FP32": "float32"}

    def kind(value):
        return model_config_pb2.DataType.Name(value.data_type).removeprefix("TYPE_")

    class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ModelMetadata(self, request, context):
            response = service_pb2.ModelMetadataResponse(name=request.name)
            for values, into in (
                (config.input, response.inputs),
                (config.output, response.outputs),
            ):
                for value in values:
                    into.add(name=value.name, datatype=kind(value), shape=[-1, *value.dims])
            return response

        def ModelInfer(self, request, context):
            if request.model_name != os.path.basename(folder):
                context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model: '{request.model_name}'")
            features = {}
            for value, data in zip(request.inputs, request.raw_input_contents, strict=True):
                (known,) = (x for x in config.input if x.name == value.name)
                rows, *sizes = value.shape
                assert value.datatype == kind(known) and rows <= config.max_batch_size
                assert len(sizes) == len(known.dims)
                assert all(most in (-1, size) for most, size in zip(known.dims, sizes))
                array = np.frombuffer(data, kinds[value.datatype])
                features[value.name] = array.reshape(value.shape)
            assert set(features) == {value.name for value in config.input}
            response = service_pb2.ModelInferResponse(model_name=request.model_name)
            outputs = run(features)
            for known in config.output:
                x = outputs[known.name]
                response.outputs.add(name=known.name, datatype=kind(known), shape=x.shape)
                response.raw_output_contents.append(x.astype(kinds[kind(known)]).tobytes())
            return response

    def add(server):
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(), server)

    with _grpc_server(add) as address:
        yield address
