"""An OVSDB server without Open vSwitch, for plugins on a fake node. It has tables in memory, and answers the ovs
plugin's requests. An inserted Interface is up immediately, without ovs-vswitchd."""

import json
import socket
import tempfile
import threading
import uuid

EMPTY = ["set", []]


class StubOvsdb:
    """The server, for `with StubOvsdb("br0") as ovsdb:`. Its socket is at ovsdb.path. tables: {table: {uuid: row}}."""

    def __init__(self, *bridges):
        root = {"next_cfg": 0, "cur_cfg": 0}
        self.tables = {"Port": {}, "Interface": {}, "Bridge": {}, "Open_vSwitch": {"root": root}}
        for name in bridges:
            self.tables["Bridge"][str(uuid.uuid4())] = {"name": name, "datapath_type": "", "ports": []}

    def __enter__(self):
        self.place = tempfile.TemporaryDirectory(prefix="fcni-ovsdb-")
        self.path = f"{self.place.name}/db.sock"
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.bind(self.path)
        self.sock.listen()
        self.thread = threading.Thread(target=self.accept)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.sock.close()
        self.place.cleanup()

    def accept(self):
        while True:
            try:
                conn, _ = self.sock.accept()
            except OSError:
                return
            with conn:
                self.serve(conn)

    def serve(self, conn):
        text, decoder = "", json.JSONDecoder()
        while data := conn.recv(1 << 16):
            text += data.decode()
            while text:
                try:
                    message, end = decoder.raw_decode(text)
                except ValueError:
                    break
                text = text[end:]
                result = getattr(self, message["method"])(message["params"])
                conn.sendall(json.dumps({"id": message["id"], "result": result, "error": None}).encode())

    # -- methods of RFC 7047 -----------------------------------------------------------------------------------

    def lock(self, _):
        return {"locked": False}                # ovs-vswitchd has the lock

    def unlock(self, _):
        return {}

    def monitor_cond(self, params):
        (table, ((asked,),)), = ((table, (it,)) for table, it in params[2].items())
        return {table: {key: {"initial": {name: row.get(name, EMPTY) for name in asked["columns"]}}
                        for key, row in self.matching(table, asked["where"])}}

    def transact(self, params):
        names = {}
        results = [getattr(self, f"do_{operation['op']}")(operation, names) for operation in params[1:]]
        self.drop_unreferenced()
        return results

    # -- operations ----------------------------------------------------------------------------------------------

    def matching(self, table, where):
        return [(key, row) for key, row in self.tables[table].items()
                if all(includes(["uuid", key] if name == "_uuid" else row[name], value) for name, _, value in where)]

    def do_wait(self, operation, _):
        assert self.matching(operation["table"], operation["where"])
        return {}

    def do_select(self, operation, _):
        return {"rows": [{name: ["uuid", key] if name == "_uuid" else travels(row.get(name, EMPTY))
                          for name in operation["columns"]}
                         for key, row in self.matching(operation["table"], operation["where"])]}

    def do_insert(self, operation, names):
        key = names[operation["uuid-name"]] = str(uuid.uuid4())
        row = {name: ["uuid", names[value[1]]] if isinstance(value, list) and value[0] == "named-uuid" else value
               for name, value in operation["row"].items()}
        extra = {"ofport": 1, "link_state": "up"} if operation["table"] == "Interface" else {}
        self.tables[operation["table"]][key] = row | extra
        return {"uuid": ["uuid", key]}

    def do_mutate(self, operation, names):
        found = self.matching(operation["table"], operation["where"])
        for _, row in found:
            for column, how, change in operation["mutations"]:
                if how == "+=":                 # only next_cfg is incremented; ovs-vswitchd would copy it to cur_cfg
                    row |= {column: row[column] + change, "cur_cfg": row[column] + change}
                    continue
                kind, value = change
                it = ["uuid", names[value] if kind == "named-uuid" else value]
                if how == "insert":
                    row[column].append(it)
                else:
                    row[column].remove(it)
        return {"count": len(found)}

    def drop_unreferenced(self):
        """Delete rows of Port and Interface that no row refers to, as OVSDB does."""
        for table, of, column in (("Port", "Bridge", "ports"), ("Interface", "Port", "interfaces")):
            used = str([row[column] for row in self.tables[of].values()])
            self.tables[table] = {key: row for key, row in self.tables[table].items() if key in used}


def travels(value):
    """Return a list of references in the protocol's form, ["set", [...]]. Return any other value unchanged."""
    return ["set", value] if isinstance(value, list) and all(isinstance(each, list) for each in value) else value


def includes(column, value):
    """Return whether a column equals a value, or is a map or set that includes the value."""
    if isinstance(value, list) and value[0] == "map":
        return all(pair in column[1] for pair in value[1])
    return column == value or (isinstance(column, list) and value in column)
