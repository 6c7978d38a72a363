"""A small server that answers as the hub does."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789" * 4


class Hub:
    """Serves the files of one repository, path -> content; all are large ones, which the hub knows by their SHA-256.

    It may break off the first answer with a file, or send other bytes than it has promised, or
    refuse what would be written.
    """

    def __init__(self, files, *, repository="vedantpuri/PDESurrogates", breaks=False, promised=None, refuses=None):
        self.ranges = []
        self.sent = []
        self.made = None
        self.refuses = refuses
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.answer(send=False)

            def do_GET(self):
                if self.path.startswith("/api/"):
                    self.tell()
                    return
                asked = self.headers.get("Range")
                hub.ranges.append(asked)
                hub.sent.append(self.path.split("/resolve/")[-1].partition("/")[2])
                start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
                self.answer(start=start, cut=breaks and len(hub.ranges) == 1)

            def do_POST(self):
                """Take files: all as small ones, which come in the commit itself."""
                if hub.refuses:
                    self.send_error(hub.refuses)
                    return
                body, path = self.rfile.read(int(self.headers["Content-Length"])), self.path.split("?")[0]
                base = f"/api/datasets/{repository}"
                if path == "/api/repos/create":
                    hub.made = json.loads(body)
                    self.reply({"url": f"https://huggingface.co/datasets/{repository}"})
                elif path == "/api/validate-yaml":
                    self.reply({"errors": [], "warnings": []})
                elif path == f"{base}/preupload/main":
                    names = [file["path"] for file in json.loads(body)["files"]]
                    self.reply({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
                elif path == f"{base}/commit/main":
                    for line in map(json.loads, body.splitlines()):
                        if line["key"] == "file":
                            files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                    url = f"https://huggingface.co/datasets/{repository}/commit/{COMMIT}"
                    self.reply({"success": True, "commitOid": COMMIT, "commitUrl": url})
                else:
                    self.send_error(404)

            def answer(self, start=0, cut=False, send=True):
                before, _, rest = self.path.split("?")[0].partition("/resolve/")
                content = files.get(rest.partition("/")[2])
                if before != f"/datasets/{repository}" or content is None:
                    self.send_error(404)
                    return
                self.send_response(206 if start else 200)
                self.send_header("ETag", f'"{digest(promised or content)}"')
                self.send_header("X-Linked-Etag", f'"{digest(promised or content)}"')
                self.send_header("X-Linked-Size", str(len(content)))
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Accept-Ranges", "bytes")
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                if send:
                    self.wfile.write(content[start : len(content) // 2 if cut else None])
                    self.close_connection = True

            def tell(self):
                """What the repository holds."""
                base, path = f"/api/datasets/{repository}", self.path.split("?")[0]
                if path == f"{base}/tree/{COMMIT}":
                    folders = sorted({name.rpartition("/")[0] for name in files} - {""})
                    about = [{"type": "directory", "path": name, "oid": "1" * 40} for name in folders]
                    about += [
                        {"type": "file", "path": name, "size": len(content), "oid": "1" * 40}
                        | {"lfs": {"oid": digest(promised or content), "size": len(content), "pointerSize": 100}}
                        for name, content in files.items()
                    ]
                elif path in (base, f"{base}/revision/main"):
                    about = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
                else:
                    self.send_error(404)
                    return
                self.reply(about)

            def reply(self, about):
                body = json.dumps(about).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def run(self, folder, *words, **environment):
        """Python in a process of its own, for which this is the hub."""
        environment = os.environ | {
            "HF_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}",
            "HF_HOME": str(folder / "home"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "no_proxy": "127.0.0.1",
            **environment,
        }
        return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)


def digest(content):
    return hashlib.sha256(content).hexdigest()
