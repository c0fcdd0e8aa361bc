"""A server that speaks as much of the W&B protocol as `wandb sync` asks for, on one machine, and keeps what it is sent.

GraphQL queries are answered by the name of their operation; `file_stream` takes the lines of a run's files; files are
uploaded to addresses that CreateRunFiles gives out. What it does not know is noted in `unknown`.
"""
import gzip
import http.server
import json
import threading
import zlib


class Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, request, address):
        """The client closes connections that are kept open, which is no error."""


class Server:
    """Listens on a port of its own while it is entered."""

    def __init__(self):
        self.unknown, self.keys = [], set()
        self.bucket, self.lines, self.ended = {}, {}, None

    def __enter__(self):
        self._server = Quiet(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, operation, variables):
        """The data of a GraphQL operation."""
        entity = variables.get("entity") or self.bucket.get("entity") or "us"
        if operation == "Viewer":
            return {"viewer": {"id": "1", "entity": "us", "username": "us", "flags": "{}", "email": "us@localhost",
                               "teams": {"edges": []}, "admin": False}}
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "UpsertBucket":
            self.bucket.update({key: value for key, value in variables.items() if value is not None})
            return {"upsertBucket": {"inserted": True, "bucket": {
                "id": "b1", "name": variables["name"], "displayName": variables.get("displayName"), "description": "",
                "config": None, "sweepName": None, "historyLineCount": 0,
                "project": {"id": "p1", "name": variables.get("project"), "entity": {"id": "e1", "name": entity}}}}}
        if operation == "CreateRunFiles":
            return {"createRunFiles": {"runID": "b1", "uploadHeaders": [], "files": [
                {"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]}}
        if operation == "RunResumeStatus":
            return {"model": None}
        self.unknown.append(operation)
        return {}

    def take_stream(self, body):
        """What `file_stream` is sent: lines of files from an offset on, and the end."""
        for name, part in body.get("files", {}).items():
            lines = self.lines.setdefault(name, [])
            offset = part.get("offset", 0)
            lines[offset:offset + len(part["content"])] = part["content"]
        if "complete" in body:
            self.ended = body

    def _handler(self):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *parts):
                pass

            def body(self):
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                coding = self.headers.get("Content-Encoding", "")
                return {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(coding, bytes)(data)

            def reply(self, value):
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                server.unknown.append(f"GET {self.path}")
                self.reply({})

            def do_PUT(self):
                self.body()
                self.reply({})

            def do_POST(self):
                body = self.body()
                server.keys.add(self.headers.get("Authorization"))
                if self.path == "/graphql":
                    asked = json.loads(body)
                    name = asked.get("operationName") or asked["query"].split("(")[0].split("{")[0].split()[-1]
                    self.reply({"data": server.answer(name, asked.get("variables") or {})})
                elif self.path.endswith("/file_stream"):
                    server.take_stream(json.loads(body))
                    self.reply({})
                else:
                    server.unknown.append(f"POST {self.path}")
                    self.reply({})

        return Handler
