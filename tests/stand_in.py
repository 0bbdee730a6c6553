"""Local stand-ins for the model hubs, with their interfaces."""

import base64
import hashlib
import http.server
import json
import os
import re
import threading
import urllib.parse

COMMIT = "c0ffee" + "0" * 34
OTHER = "beef" + "0" * 36


def sha1(content):
    return hashlib.sha1(content).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """The requests of huggingface_hub: a model's file list, files by `resolve`, and commits."""

    def log_message(self, *arguments):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        parts = urllib.parse.unquote(urllib.parse.urlparse(self.path).path).strip("/").split("/")
        if parts[0] == "api":
            self.describe("/".join(parts[2:4]), *parts[4:])
        else:
            self.file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def revision(self, repository, revision):
        revisions = self.server.repositories.get(repository)
        if revisions is None:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")
        elif revision not in revisions:
            self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
        else:
            return revisions[revision]

    def describe(self, repository, what="revision", revision="main"):
        """Return the description of a model or, with "tree", its files with their sizes."""
        found = self.revision(repository, revision)
        if not found:
            return
        commit, files = found
        if what == "tree":
            body = [
                {"type": "file", "path": name, "size": len(content), "oid": sha1(content)}
                for name, content in files.items()
            ]
        else:
            siblings = [{"rfilename": name} for name in files]
            body = {"id": repository, "sha": commit, "siblings": siblings, "private": False}
        self.answer(200, json.dumps(body).encode(), Content_Type="application/json")

    def file(self, repository, revision, name):
        found = self.revision(repository, revision)
        if not found:
            return
        commit, files = found
        if name not in files:
            return self.answer(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        if self.command == "GET":
            self.server.fetched.append(name)
        content = files[name]
        self.answer(
            200,
            content,
            ETag=f'"{sha1(content)}"',
            X_Repo_Commit=commit,
            Accept_Ranges="bytes",
        )

    # Uploads, as to a git repository with large files.

    def body(self):
        size = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(size)

    def answer_json(self, value, status=200, **headers):
        self.answer(status, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def may_write(self, organization):
        """Return whether the token is one of the organization's; else send the hub's error."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in self.server.writers:
            self.answer_json({"error": "Invalid credentials"}, 401)
        elif organization not in self.server.writers[token]:
            self.answer_json({"error": f"You have no right to write to {organization}"}, 403)
        else:
            return True
        return False

    def do_POST(self):
        data = self.body()
        parts = urllib.parse.unquote(urllib.parse.urlparse(self.path).path).strip("/").split("/")
        if parts == ["api", "validate-yaml"]:
            self.validate(json.loads(data)["content"])
        elif parts == ["api", "repos", "create"]:
            self.create(json.loads(data))
        elif parts[-3:] == ["lfs", "objects", "batch"]:
            self.batch(parts, json.loads(data))
        elif parts[:1] == ["verify"]:
            self.answer_json({})
        elif self.may_write(parts[2]):
            repository = "/".join(parts[2:4])
            {"preupload": self.preupload, "commit": self.commit}[parts[4]](repository, data)

    def validate(self, content):
        import yaml

        front = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
        try:
            fields = yaml.safe_load(front[1])
            errors = [] if isinstance(fields, dict) else ["no fields"]
        except (TypeError, yaml.YAMLError) as error:
            errors = [str(error)]
        problems = {"errors": [{"message": error} for error in errors], "warnings": []}
        self.answer_json(problems, 400 if errors else 200)

    def create(self, asked):
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        mine = self.server.writers.get(token, [None])[0]
        name = f"{asked['organization'] or mine}/{asked['name']}"
        if not self.may_write(name.split("/")[0]):
            return
        is_new = name not in self.server.repositories
        self.server.repositories.setdefault(name, {"main": (COMMIT, {})})
        url = f"http://{self.headers['Host']}/{name}"
        self.answer_json({"url": url}, 200 if is_new else 409)

    def preupload(self, repository, data):
        self.answer_json(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(".h5") else "regular",
                        "shouldIgnore": False,
                        "oid": None,
                    }
                    for file in json.loads(data)["files"]
                ]
            }
        )

    def batch(self, parts, asked):
        if not self.may_write(parts[0]):
            return
        url = f"http://{self.headers['Host']}"
        objects = [
            {
                **one,
                "actions": {
                    "upload": {"href": f"{url}/large/{one['oid']}", "header": {}},
                    "verify": {"href": f"{url}/verify", "header": {}},
                },
            }
            for one in asked["objects"]
        ]
        self.answer_json({"transfer": "basic", "objects": objects})

    def do_PUT(self):
        data = self.body()
        name = self.path.rpartition("/")[2]
        assert hashlib.sha256(data).hexdigest() == name
        self.server.large[name] = data
        self.answer(200)

    def commit(self, repository, data):
        commit, files = self.server.repositories[repository]["main"]
        files = dict(files)
        for line in map(json.loads, data.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
        commit = sha1(repr(sorted(files.items())).encode())
        self.server.repositories[repository] = {"main": (commit, files), commit: (commit, files)}
        url = f"http://{self.headers['Host']}/{repository}/commit/{commit}"
        self.answer_json({"commitUrl": url, "commitOid": commit, "success": True})


def hub_stand_in(monkeypatch, tmp_path):
    """A fixture: a stand-in for the Hugging Face hub.

    `repositories[name][revision] = (commit, files)`, `writers[token] = organizations`.
    """
    from huggingface_hub import constants, hf_api

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.repositories, server.fetched = {}, []
    server.large, server.writers = {}, {}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    # HF_ENDPOINT and HF_HUB_CACHE are read at the first import, which may be over.
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(hf_api.api, "endpoint", url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # Uploads contact other servers.
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


class Kaggle(http.server.BaseHTTPRequestHandler):
    """The requests of kagglehub for an upload: models, their variations, and files by token."""

    def log_message(self, *arguments):
        pass

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = self.path.rpartition("/")[2]
        server = self.server
        if self.headers.get("Authorization") not in server.writers:
            return self.answer({"code": 401, "message": "Unauthenticated"}, 401)
        server.asked.append(method)
        if method == "GetModel":
            if f"{asked['ownerSlug']}/{asked['modelSlug']}" in server.models:
                return self.answer({})
            return self.answer({"code": 404, "message": "Not found"}, 404)
        if method == "CreateModel":
            server.models[f"{asked['ownerSlug']}/{asked['slug']}"] = {}
            return self.answer({})
        if method == "StartBlobUpload":
            token = f"token{len(server.blobs)}"
            server.blobs[token] = [asked["name"], None]
            url = f"http://{self.headers['Host']}/{token}"
            return self.answer({"token": token, "createUrl": url})
        body = asked["body"]
        instances = server.models[f"{asked['ownerSlug']}/{asked['modelSlug']}"]
        if method == "CreateModelInstance":
            if body["instanceSlug"] in instances:
                return self.answer({"error": "It is there.", "errorCode": 409})
            instances[body["instanceSlug"]] = [self.tree(body)]
        else:
            instances[asked["instanceSlug"]].append(self.tree(body))
        self.answer({})

    def tree(self, body, folder=""):
        files = {}
        for file in body.get("files") or ():
            name, content = self.server.blobs[file["token"]]
            files[folder + name] = content
        for directory in body.get("directories") or ():
            files |= self.tree(directory, f"{folder}{directory['name']}/")
        return files

    def do_PUT(self):
        size = int(self.headers["Content-Length"])
        self.server.blobs[self.path.strip("/")][1] = self.rfile.read(size)
        self.answer({})


def kaggle_stand_in(monkeypatch):
    """A fixture: a stand-in for Kaggle, `models[name][variation] = [files of each version]`."""
    from kagglesdk import kaggle_env

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Kaggle)
    server.models, server.blobs, server.asked, server.writers = {}, {}, [], set()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # kagglehub only knows its own endpoints.
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setitem(kaggle_env._env_to_endpoint, kaggle_env.KaggleEnv.PROD, url)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


def files_of(directory):
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found
