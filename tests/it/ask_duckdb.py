"""Runs named queries in DuckDB over the Parquet files of a store.

Standard input is JSON: tables (name, files, columns with their DuckDB types), views and queries (name, SQL, parameters).
Standard output is one JSON object per query: its columns and rows, each value with its kind, or the error.
"""

import json
import sys

import duckdb


def tagged(value):
    if value is None:
        return None
    if isinstance(value, bool):
        return ["bool", str(value).lower()]
    if isinstance(value, int):
        return ["int", str(value)]
    if isinstance(value, str):
        return ["text", value]
    if isinstance(value, (list, tuple)):
        return ["list", json.dumps(value)]
    return ["real", repr(float(value))]


def main():
    asked = json.load(sys.stdin)
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("CREATE SCHEMA base")
    for table in asked["tables"]:
        if table["files"]:
            files = ", ".join("'" + file.replace("'", "''") + "'" for file in table["files"])
            connection.execute(f"CREATE VIEW {table['name']} AS SELECT * FROM read_parquet([{files}])")
        else:
            columns = ", ".join(f'"{name}" {kind}' for name, kind in table["columns"])
            connection.execute(f"CREATE TABLE {table['name']} ({columns})")
    # A view is made once those that it reads are there.
    left, failed, before = asked["views"], {}, None
    while left and len(left) != before:
        before, failed = len(left), {}
        for view in left:
            try:
                connection.execute(f"CREATE VIEW {view['name']} AS\n{view['sql']}")
            except duckdb.Error as error:
                failed[view["name"]] = str(error)
        left = [view for view in left if view["name"] in failed]
    for query in asked["queries"]:
        try:
            cursor = connection.execute(query["sql"], query["params"] or None)
            columns = [column[0] for column in cursor.description]
            rows = [[tagged(value) for value in row] for row in cursor.fetchall()]
            answer = {"name": query["name"], "columns": columns, "rows": rows}
        except duckdb.Error as error:
            answer = {"name": query["name"], "error": str(error), "views": failed}
        print(json.dumps(answer))


main()
