//! Captures of Nsight Systems, exported as an SQLite database.
//!
//! ```text
//! $ nsys export --type sqlite report.nsys-rep        makes report.sqlite, of schema version 3.25.0 and the like
//! sqlite> SELECT start, end, deviceId, correlationId, globalPid, demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL;
//! 155360295935|155360299999|0|1438831|281476838981632|331029
//! sqlite> SELECT start, end, eventType, text, globalTid FROM NVTX_EVENTS;
//! 155357596302|155357609579|59|aten::view, op_id = 314290|281476838981743
//! ```
//!
//! What the tables mean is in [`super::nsys`]. The file is foreign: it is opened read-only and immutable, its schema is
//! not trusted, views, triggers and virtual tables are off, an authorizer allows nothing but to read columns and their names, lengths are
//! limited, and so is the work that a file of its size can need.
//!
//! Refused as a whole: a file that is shorter than its header says, a damaged page, a virtual table under a name that is
//! read, a computed column in a table that is read, more rows than its bytes can hold. Row by row: values of the wrong type, an end before its
//! start, negative sizes.

use std::fs;
use std::path::Path;

use engine::error::{Error, Result};
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use super::nsys::{self, Tables, Take, Value};
use super::problem::quoted;
use super::sink::Sink;
use super::source::{Body, Input, SQLITE};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "nsys_sqlite",
    doc: "kernels, copies, launches and NVTX ranges by Nsight Systems, as an SQLite export",
    spec: "https://docs.nvidia.com/nsight-systems/UserGuide/ (SQLite schema reference)",
    verified: true,
    sniff,
    read,
};

/// The longest text or row that is read.
const LENGTH: i32 = 16 << 20;

/// Steps of the virtual machine between two looks at the clock.
const STEPS: i32 = 1 << 20;

/// Steps per byte of the file: three passes over rows of one byte a column need fewer.
const STEPS_PER_BYTE: u64 = 16;

/// The least bytes of a row: a pointer to it, its length and number, and a header.
const ROW_BYTES: u64 = 4;

fn sniff(head: &Head<'_>) -> Sniff {
    if !head.bytes.starts_with(SQLITE) {
        return Sniff::No;
    }
    // The schema stands in the first pages.
    let marks: [&[u8]; 4] = [b"CUPTI_ACTIVITY_KIND_", b"NVTX_EVENTS", b"TABLE StringIds", b"TABLE META_DATA_EXPORT"];
    let is_there = |mark: &[u8]| memchr::memmem::find(head.bytes, mark).is_some();
    // A database may hold its texts in UTF-16, its schema too; SQLite turns them into UTF-8.
    let wide = |mark: &[u8]| -> Vec<u8> { mark.iter().flat_map(|byte| [*byte, 0]).collect() };
    let found = match head.bytes.get(59) {
        Some(2) => marks.iter().any(|mark| is_there(&wide(mark))),
        Some(3) => marks.iter().any(|mark| is_there(&[&[0], &wide(mark)[..]].concat())),
        _ => marks.iter().any(|mark| is_there(mark)),
    };
    if found { Sniff::Yes } else { Sniff::No }
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    input.options.without_choice("nsys_sqlite", "its instants are nanoseconds")?;
    let Body::File(file) = &input.body else {
        return Err(Error::data(format!("expected an SQLite database in `{}`, found none", input.path))
            .hint("`nsys export --type sqlite` makes one"));
    };
    let mut database = Database::open(input.path, file.path())?;
    nsys::read(input.path, &mut database, sink)
}

/// An untrusted database.
struct Database<'p> {
    path: &'p str,
    connection: Connection,
    names: Vec<String>,
    /// The most rows that a table can have.
    rows: u64,
}

impl<'p> Database<'p> {
    fn open(path: &'p str, file: &Path) -> Result<Self> {
        let size = fs::metadata(file).map_err(|error| damaged(path, &error.to_string()))?.len();
        let header = first_bytes(file).map_err(|error| damaged(path, &error.to_string()))?;
        check_size(path, &header, size)?;
        let connection = guarded(file, size).map_err(|error| damaged(path, &error.to_string()))?;
        let mut database = Self { path, connection, names: Vec::new(), rows: size / ROW_BYTES };
        database.list()?;
        Ok(database)
    }

    /// Lists the plain tables.
    fn list(&mut self) -> Result<()> {
        let path = self.path;
        let failed = |error: rusqlite::Error| damaged(path, &error.to_string());
        let mut names = Vec::new();
        {
            let sql = "SELECT type, name, sql, rootpage FROM sqlite_schema";
            let mut statement = self.connection.prepare(sql).map_err(failed)?;
            let mut rows = statement.query([]).map_err(failed)?;
            while let Some(row) = rows.next().map_err(failed)? {
                let text = |at: usize| row.get::<_, String>(at).unwrap_or_default();
                let (kind, name, sql) = (text(0), text(1), text(2));
                let mut words = sql.split_ascii_whitespace();
                let is = |word: Option<&str>, wanted: &str| word.is_some_and(|word| word.eq_ignore_ascii_case(wanted));
                let plain = kind == "table" && is(words.next(), "CREATE") && is(words.next(), "TABLE");
                if !plain && kind != "index" && nsys::is_read(&name) {
                    return Err(Error::data(format!("expected `{name}` of `{path}` as a table, found another thing"))
                        .hint("an export holds plain tables; views and virtual tables are not read"));
                }
                if plain {
                    names.push(name);
                }
            }
        }
        names.sort_unstable();
        self.names = names;
        Ok(())
    }
}

/// The first 100 bytes.
fn first_bytes(file: &Path) -> std::io::Result<[u8; 100]> {
    let mut header = [0; 100];
    std::io::Read::read_exact(&mut fs::File::open(file)?, &mut header)?;
    Ok(header)
}

/// Refuses a file that is shorter than its header says.
fn check_size(path: &str, header: &[u8; 100], size: u64) -> Result<()> {
    let number =
        |at: usize| header.get(at..at + 4).map_or(0, |bytes| bytes.iter().fold(0, |sum, b| sum << 8 | u64::from(*b)));
    let page = match (header[16], header[17]) {
        (0, 1) => 1 << 16,
        (high, low) => u64::from(high) << 8 | u64::from(low),
    };
    // The number of pages holds if the file was last written by a library that keeps it.
    let (pages, change, valid_for) = (number(28), number(24), number(92));
    let expected = pages.saturating_mul(page);
    if pages > 0 && change == valid_for && expected > size {
        return Err(damaged(path, &format!("expected {expected} bytes, found {size}")));
    }
    Ok(())
}

/// Opens a file that must not be able to do anything.
fn guarded(file: &Path, size: u64) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(uri(file), flags)?;
    for (option, value) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_DQS_DML, false),
        (DbConfig::SQLITE_DBCONFIG_DQS_DDL, false),
    ] {
        connection.set_db_config(option, value)?;
    }
    for (limit, value) in [
        (Limit::SQLITE_LIMIT_LENGTH, LENGTH),
        (Limit::SQLITE_LIMIT_SQL_LENGTH, 1 << 20),
        (Limit::SQLITE_LIMIT_COLUMN, 500),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 50),
        (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100),
        (Limit::SQLITE_LIMIT_VDBE_OP, 25_000),
        (Limit::SQLITE_LIMIT_FUNCTION_ARG, 8),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 50),
        (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 10),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        connection.set_limit(limit, value)?;
    }
    let mut left = 64 + size.saturating_mul(STEPS_PER_BYTE) / STEPS as u64;
    connection.progress_handler(
        STEPS,
        Some(move || {
            left = left.saturating_sub(1);
            left == 0
        }),
    )?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.authorizer(Some(|context: AuthContext<'_>| match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Pragma { pragma_name: "table_xinfo", .. } => {
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }))?;
    Ok(connection)
}

/// The file as an immutable one: no journal is looked for, no lock is taken.
fn uri(file: &Path) -> String {
    use std::fmt::Write as _;
    let mut uri = "file:".to_owned();
    for byte in file.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            _ => {
                let _ = write!(uri, "%{byte:02x}");
            }
        }
    }
    uri.push_str("?mode=ro&immutable=1");
    uri
}

fn damaged(path: &str, why: &str) -> Error {
    Error::data(format!("cannot read `{path}`: {why}")).hint(
        "a database that was cut or damaged is refused as a whole; export it again with `nsys export --type sqlite`",
    )
}

/// A name as SQL.
fn name(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

impl Tables for Database<'_> {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn is_empty(&mut self, table: &str) -> Result<bool> {
        let failed = |error: rusqlite::Error| damaged(self.path, &error.to_string());
        // No column is read, so that none is computed.
        let sql = format!("SELECT 1 FROM {} LIMIT 1", name(table));
        let mut statement = self.connection.prepare(&sql).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        rows.next().map(|row| row.is_none()).map_err(failed)
    }

    fn columns(&mut self, table: &str) -> Result<Vec<String>> {
        let failed = |error: rusqlite::Error| damaged(self.path, &error.to_string());
        let sql = format!("PRAGMA table_xinfo({})", name(table));
        let mut statement = self.connection.prepare(&sql).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        let mut columns = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let (column, hidden): (String, i64) = (row.get(1).map_err(failed)?, row.get(6).map_err(failed)?);
            // No authorizer sees what a computed column calls.
            if hidden != 0 {
                return Err(damaged(
                    self.path,
                    &format!("`{table}` has the computed column {}", quoted(column.as_bytes())),
                ));
            }
            columns.push(column);
        }
        Ok(columns)
    }

    fn each(&mut self, table: &str, columns: &[&str], take: &mut Take<'_>) -> Result<()> {
        let known = self.columns(table)?;
        let failed = |error: rusqlite::Error| damaged(self.path, &error.to_string());
        let wanted: Vec<String> = columns
            .iter()
            .map(|column| if known.iter().any(|one| one == column) { name(column) } else { "NULL".to_owned() })
            .collect();
        let sql = format!("SELECT {} FROM {}", wanted.join(", "), name(table));
        let mut statement = self.connection.prepare(&sql).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        let mut number = 0;
        while let Some(row) = rows.next().map_err(failed)? {
            number += 1;
            if number > self.rows {
                return Err(damaged(self.path, &format!("`{table}` has more rows than its bytes can hold")));
            }
            let mut values = Vec::with_capacity(columns.len());
            for at in 0..columns.len() {
                values.push(match row.get_ref(at).map_err(failed)? {
                    ValueRef::Null => Value::Null,
                    ValueRef::Integer(value) => Value::Int(value),
                    ValueRef::Real(value) => Value::Real(value),
                    ValueRef::Text(text) => Value::Text(text),
                    ValueRef::Blob(_) => Value::Other("a blob"),
                });
            }
            take(number, &values)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
