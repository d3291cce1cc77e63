"""An HTTP service in a thread, for tests of clients. answers: {path: function(body)}, which returns one of:

    (status, JSON value)        an answer
    iterator of bytes           a chunked answer, each piece as it comes
    "hang up"                   close the connection without an answer
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version, wbufsize, disable_nagle_algorithm = "HTTP/1.1", -1, True

    def log_message(self, *_):
        """Write no log line."""

    def setup(self):
        super().setup()
        self.server.connections += 1

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.path, dict(self.headers), body))
        answer = self.server.answers.get(self.path, lambda body: (404, {"message": "Not Found", "code": 5}))(body)
        if answer == "hang up":
            self.close_connection = True
        elif isinstance(answer, tuple):
            self.whole(*answer)
        else:
            self.chunked(answer)

    def whole(self, status, value):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def chunked(self, pieces):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in [*pieces, b""] if isinstance(pieces, list) else pieces:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
        except ConnectionError:
            self.close_connection = True        # the client closed the connection early

    do_GET = do_POST


class Service(ThreadingHTTPServer):
    """An HTTP server. Example: `with Service({"/a": lambda body: (200, {})}) as service:`, then service.url,
    service.asked and service.connections."""

    daemon_threads, block_on_close = True, False

    def __init__(self, answers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked, self.connections = answers, [], 0
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    def handle_error(self, *_):
        """Ignore a client that closes its connection."""

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.thread.join()
        self.server_close()
