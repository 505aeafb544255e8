//! The tables of an Nsight Systems export, whatever holds them: a database or a folder of Parquet files.
//!
//! ```text
//! CUPTI_ACTIVITY_KIND_KERNEL   start, end, deviceId, streamId, correlationId, globalPid, demangledName -> StringIds, ...
//! CUPTI_ACTIVITY_KIND_MEMCPY   start, end, bytes, copyKind, ...
//! CUPTI_ACTIVITY_KIND_MEMSET   start, end, bytes, ...
//! CUPTI_ACTIVITY_KIND_GRAPH_TRACE   start, end, graphId, ...
//! CUPTI_ACTIVITY_KIND_RUNTIME  start, end, globalTid, correlationId, nameId -> StringIds
//! NVTX_EVENTS                  start, end, eventType, text or textId -> StringIds, globalTid, domainId, rangeId
//! StringIds                    id, value
//! TARGET_INFO_SESSION_START_TIME   utcEpochNs
//! ```
//!
//! Tables exist where something was captured, perhaps with `_V2` and the like behind the name. Columns are found by name,
//! and those that an older export lacks are unknown. Names are texts by number. Instants count from the start of the
//! session; where that is known, they are moved to the Unix epoch. A process is bits 24 to 47 of a global id, a thread
//! bits 0 to 23, and the bits above tell machines apart. Correlations are unique within a process of a machine only: a
//! kernel's launch is looked up by all of these, on disk, so that memory does not grow with the capture.
//!
//! Kernels, copies, fills and whole graphs become `kernels`; calls of the runtime and NVTX ranges become `annotations`.
//! Other tables of events are logged and not read. Nothing is read of processes, threads, hosts, users, command lines and
//! environments, and the texts that hold what a program printed are never looked up.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::rc::Rc;

use engine::error::{Error, Result};
use rusqlite::{Connection, OptionalExtension, Statement, params};

use super::Settings;
use super::gpu::{Annotation, Gpu, Kernel};
use super::problem::{Problem, RAW_BYTES, quoted};
use super::sink::{Event, Severity, Sink};

/// A value of a foreign table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Int(i64),
    Real(f64),
    Text(&'a [u8]),
    /// Something that no column of these tables holds.
    Other(&'static str),
}

/// What takes rows: the number of the row, from 1, and its values in the order of the columns asked for.
pub(super) type Take<'t> = dyn FnMut(u64, &[Value<'_>]) -> Result<()> + 't;

/// The tables of an export.
pub(super) trait Tables {
    /// Their names, sorted.
    fn names(&self) -> &[String];
    /// Whether a table has no row.
    fn is_empty(&mut self, table: &str) -> Result<bool>;
    /// Which of its columns a table has.
    fn columns(&mut self, table: &str) -> Result<Vec<String>>;
    /// Gives each row; a column that is missing is null.
    fn each(&mut self, table: &str, columns: &[&str], take: &mut Take<'_>) -> Result<()>;
}

const VERSION: Event = Event { severity: Severity::Info, code: "schema_version", advice: None };
const PRIVATE: Event = Event { severity: Severity::Info, code: "private_table", advice: Some("left out on purpose") };
const NOT_READ: Event =
    Event { severity: Severity::DataLoss, code: "table_not_read", advice: Some("its events are not stored") };
const NO_LAUNCH: Event = Event {
    severity: Severity::Notice,
    code: "launch_unknown",
    advice: Some("a slice of a capture loses calls at its edges; `launch_ns` is unknown"),
};
const NO_NAME: Event = Event { severity: Severity::Notice, code: "name_unknown", advice: Some("`StringIds` lacks it") };
const UNNAMED_RANGE: Event = Event { severity: Severity::Info, code: "no_range", advice: None };
const NO_WALL_TIME: Event =
    Event { severity: Severity::Info, code: "no_session_start", advice: Some("instants count from the session") };
const SEVERAL_HOSTS: Event = Event {
    severity: Severity::Notice,
    code: "several_hosts",
    advice: Some("launches are found by the whole id; export the machines apart to tell their processes apart"),
};
const LONG_NAMES: Event = Event { severity: Severity::Info, code: "domain_forgotten", advice: None };

const KERNEL: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
const GRAPH: &str = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
const MEMCPY: &str = "CUPTI_ACTIVITY_KIND_MEMCPY";
const MEMSET: &str = "CUPTI_ACTIVITY_KIND_MEMSET";
const RUNTIME: &str = "CUPTI_ACTIVITY_KIND_RUNTIME";
const NVTX: &str = "NVTX_EVENTS";
const READ: [&str; 6] = [KERNEL, GRAPH, MEMCPY, MEMSET, RUNTIME, NVTX];

/// Tables that are no events of their own.
const BESIDE: [&str; 7] = [
    "StringIds",
    "TARGET_INFO_SESSION_START_TIME",
    "META_DATA_EXPORT",
    "NVTX_PAYLOAD_SCHEMAS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
    "NVTX_PAYLOAD_ENUMS",
    "NVTX_PAYLOAD_ENUM_ENTRIES",
];
/// Tables, or beginnings of their names, that tell who ran what where.
const PRIVATE_TABLES: [&str; 8] = [
    "ProcessStreams",
    "PROCESSES",
    "ThreadNames",
    "ANALYSIS_",
    "TARGET_INFO_",
    "META_DATA_CAPTURE",
    "DIAGNOSTIC_EVENT",
    "EXPORT_",
];

/// Names of kernels that are kept at hand, in bytes, and domains.
const CACHE: usize = 8 << 20;
const DOMAINS: usize = 64 << 10;

/// Whether this is the table, perhaps with `_V2` and the like behind its name.
pub(super) fn is_table(name: &str, base: &str) -> bool {
    name.strip_prefix(base).is_some_and(|rest| {
        let version = rest.strip_prefix("_V").unwrap_or_default();
        rest.is_empty() || (!version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// Whether the table holds rows that are read.
pub(super) fn is_read(name: &str) -> bool {
    READ.iter().any(|base| is_table(name, base))
}

/// Reads all tables.
///
/// # Errors
/// No table of events; a table without its times; an export that is damaged.
pub(super) fn read(path: &str, tables: &mut dyn Tables, sink: &mut Sink<'_>) -> Result<Settings> {
    if !tables.names().iter().any(|name| is_read(name)) {
        let expected = READ.map(|name| format!("`{name}`")).join(", ");
        return Err(Error::data(format!("expected a table of Nsight Systems in `{path}`, found none"))
            .hint(format!("any of {expected} is read")));
    }
    log_tables(tables, sink)?;
    let epoch = session_start(tables, sink)?;
    let scratch = Scratch::new()?;
    scratch.fill(tables)?;
    let (gpu, names) = (Gpu::new(), Names::new(&scratch.0)?);
    let context = Context { path, epoch: epoch.unwrap_or(0), gpu, names, hosts: Hosts::default() };
    let mut reader = Reader { context, scratch: &scratch.0 };
    let names = tables.names().to_vec();
    let of = |base: &'static str| names.iter().filter(move |name| is_table(name, base));
    for table in of(RUNTIME) {
        reader.runtime(tables, table, sink)?;
    }
    for (base, kind) in [(KERNEL, Kind::Kernel), (GRAPH, Kind::Graph), (MEMCPY, Kind::Copy), (MEMSET, Kind::Fill)] {
        for table in of(base) {
            reader.work(tables, table, kind, sink)?;
        }
    }
    for table in of(NVTX) {
        reader.ranges(tables, table, sink)?;
    }
    reader.context.gpu.flush(sink)?;
    let clock = if epoch.is_some() { "epoch" } else { "trace_start" };
    Ok(Settings { time_unit: Some("ns"), clock: Some(clock), ..Settings::default() })
}

fn log_tables(tables: &mut dyn Tables, sink: &mut Sink<'_>) -> Result<()> {
    for name in tables.names().to_vec() {
        let beside = BESIDE.contains(&name.as_str()) || name.starts_with("ENUM_") || name.starts_with("sqlite_");
        if is_read(&name) || beside {
            continue;
        }
        let private = PRIVATE_TABLES.iter().any(|table| name.starts_with(table));
        if private || !tables.is_empty(&name)? {
            let message = format!("the table {} was not read", quoted(name.as_bytes()));
            sink.log(if private { PRIVATE } else { NOT_READ }, &message, None, None);
        }
    }
    if !has(tables, "META_DATA_EXPORT") {
        return Ok(());
    }
    tables.each("META_DATA_EXPORT", &["name", "value"], &mut |_, row| {
        if let [Value::Text(b"EXPORT_SCHEMA_VERSION"), Value::Text(version)] = row {
            sink.log(VERSION, &format!("the export has the schema version {}", quoted(version)), None, None);
        }
        Ok(())
    })
}

fn has(tables: &dyn Tables, name: &str) -> bool {
    tables.names().iter().any(|known| known == name)
}

/// When the session began, since 1970.
fn session_start(tables: &mut dyn Tables, sink: &mut Sink<'_>) -> Result<Option<i64>> {
    const TABLE: &str = "TARGET_INFO_SESSION_START_TIME";
    let (mut start, mut several) = (None, false);
    if has(tables, TABLE) {
        tables.each(TABLE, &["utcEpochNs"], &mut |_, row| {
            if let [Value::Int(ns @ 1..)] = row {
                several |= start.replace(*ns).is_some_and(|before| before != *ns);
            }
            Ok(())
        })?;
    }
    let start = start.filter(|_| !several);
    if start.is_none() {
        sink.log(NO_WALL_TIME, "the export does not say when its session began", None, None);
    }
    Ok(start)
}

/// A database of our own on disk, for texts by number and launches by correlation.
struct Scratch(Connection);

fn scratch_error(error: &rusqlite::Error) -> Error {
    Error::run(format!("cannot use a temporary database: {error}"))
}

impl Scratch {
    fn new() -> Result<Self> {
        // Without a name: a file that goes with its connection, written once the cache is full.
        let open = || {
            let db = Connection::open("")?;
            db.execute_batch(
                "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-16384; BEGIN;
                 CREATE TABLE texts (id INTEGER PRIMARY KEY, value TEXT);
                 CREATE TABLE launches (process INTEGER, correlation INTEGER, start INTEGER,
                                        PRIMARY KEY (process, correlation)) WITHOUT ROWID;",
            )?;
            Ok(db)
        };
        open().map(Self).map_err(|error| scratch_error(&error))
    }

    /// Copies the texts. The first one of a number counts, so that those which must not be read come first, as unknown.
    fn fill(&self, tables: &mut dyn Tables) -> Result<()> {
        let insert = "INSERT OR IGNORE INTO texts VALUES (?1, ?2)";
        let mut insert = self.0.prepare(insert).map_err(|error| scratch_error(&error))?;
        for (table, columns) in [("ProcessStreams", ["filenameId", "contentId"]), ("ANALYSIS_FILE", ["contentId", ""])]
        {
            if has(tables, table) {
                tables.each(table, &columns, &mut |_, row| {
                    for value in row {
                        if let Value::Int(id) = value {
                            insert.execute(params![id, None::<&str>]).map_err(|error| scratch_error(&error))?;
                        }
                    }
                    Ok(())
                })?;
            }
        }
        if has(tables, "StringIds") {
            tables.each("StringIds", &["id", "value"], &mut |_, row| {
                if let [Value::Int(id), Value::Text(text)] = row {
                    let text = String::from_utf8_lossy(text);
                    insert.execute(params![id, text]).map_err(|error| scratch_error(&error))?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Texts by number.
struct Names<'s> {
    lookup: Statement<'s>,
    known: HashMap<i64, Option<Rc<str>>>,
    bytes: usize,
}

impl<'s> Names<'s> {
    fn new(scratch: &'s Connection) -> Result<Self> {
        let lookup = scratch.prepare("SELECT value FROM texts WHERE id = ?1").map_err(|error| scratch_error(&error))?;
        Ok(Self { lookup, known: HashMap::new(), bytes: 0 })
    }

    fn get(&mut self, id: Option<i64>) -> Result<Option<Rc<str>>> {
        let Some(id) = id else { return Ok(None) };
        if let Some(known) = self.known.get(&id) {
            return Ok(known.clone());
        }
        let found = self.lookup.query_row([id], |row| row.get::<_, Option<String>>(0)).optional();
        let text: Option<Rc<str>> = found.map_err(|error| scratch_error(&error))?.flatten().map(Into::into);
        self.bytes += 64 + text.as_ref().map_or(0, |text| text.len());
        if self.bytes > CACHE {
            self.known.clear();
            self.bytes = 0;
        }
        self.known.insert(id, text.clone());
        Ok(text)
    }
}

/// What is wrong with a row.
struct Fault {
    column: &'static str,
    code: &'static str,
    expected: String,
    found: String,
}

/// What a global id says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ids {
    process: Option<u64>,
    thread: Option<u64>,
    /// All bits above those of the thread: processes of different machines may have one number. -1 without an id.
    key: i64,
}

impl Default for Ids {
    fn default() -> Self {
        Self { process: None, thread: None, key: -1 }
    }
}

/// A row by names of columns.
struct Row<'r> {
    columns: &'static [&'static str],
    values: &'r [Value<'r>],
}

type Found<T> = std::result::Result<T, Fault>;

impl<'r> Row<'r> {
    fn get(&self, column: &str) -> Value<'r> {
        let at = self.columns.iter().position(|known| *known == column);
        at.and_then(|at| self.values.get(at)).copied().unwrap_or(Value::Null)
    }

    fn fault(&self, column: &'static str, code: &'static str, expected: &str) -> Fault {
        let found = match self.get(column) {
            Value::Null => "nothing".to_owned(),
            Value::Int(value) => value.to_string(),
            Value::Real(value) => value.to_string(),
            Value::Text(text) => quoted(text),
            Value::Other(what) => what.to_owned(),
        };
        Fault { column, code, expected: expected.to_owned(), found }
    }

    fn int(&self, column: &'static str) -> Found<Option<i64>> {
        match self.get(column) {
            Value::Null => Ok(None),
            Value::Int(value) => Ok(Some(value)),
            _ => Err(self.fault(column, "wrong_type", "a whole number")),
        }
    }

    fn whole<T: TryFrom<i64>>(&self, column: &'static str) -> Found<Option<T>> {
        let Some(value) = self.int(column)? else { return Ok(None) };
        let code = if value < 0 { "negative" } else { "out_of_range" };
        let wrong = |_| self.fault(column, code, "a whole number of at least zero that fits its column");
        T::try_from(value).map(Some).map_err(wrong)
    }

    fn text(&self, column: &'static str) -> Found<Option<&'r str>> {
        match self.get(column) {
            Value::Null => Ok(None),
            Value::Text(text) => {
                std::str::from_utf8(text).map(Some).map_err(|_| self.fault(column, "utf8", "text in UTF-8"))
            }
            _ => Err(self.fault(column, "wrong_type", "text")),
        }
    }

    /// Start and duration; `end` may be missing of a range that was cut.
    fn times(&self, epoch: i64) -> Found<(i64, Option<i64>)> {
        let wrong = || self.fault("start", "out_of_range", "an instant in nanoseconds");
        let start = self.int("start")?.ok_or_else(wrong)?;
        let moved = start.checked_add(epoch).ok_or_else(wrong)?;
        let Some(end) = self.int("end")? else { return Ok((moved, None)) };
        match end.checked_sub(start).filter(|duration| *duration >= 0) {
            Some(duration) => Ok((moved, Some(duration))),
            None => Err(self.fault("end", "negative", &format!("an instant of at least {start}"))),
        }
    }

    /// Process and thread of a global id.
    fn ids(&self, column: &'static str) -> Found<Ids> {
        let Some(id) = self.int(column)? else { return Ok(Ids::default()) };
        // The pattern of bits counts, whatever its sign.
        let id = id as u64;
        Ok(Ids { process: Some((id >> 24) & 0xff_ffff), thread: Some(id & 0xff_ffff), key: (id >> 24) as i64 })
    }

    /// A number that joins rows; CUPTI gives 0 to none.
    fn correlation(&self) -> Found<Option<u64>> {
        Ok(self.int("correlationId")?.map(|id| id as u64).filter(|id| *id > 0))
    }
}

/// What work a table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kernel,
    Graph,
    Copy,
    Fill,
}

const WORK: &[&str] = &[
    "start",
    "end",
    "deviceId",
    "streamId",
    "correlationId",
    "globalPid",
    "demangledName",
    "shortName",
    "registersPerThread",
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "staticSharedMemory",
    "dynamicSharedMemory",
    "bytes",
    "copyKind",
    "graphId",
];
const CALL: &[&str] = &["start", "end", "globalTid", "correlationId", "nameId"];
const RANGE: &[&str] = &["start", "end", "eventType", "rangeId", "text", "textId", "globalTid", "domainId"];

/// Kinds of copies by the numbers of `CUpti_ActivityMemcpyKind`, and how Nsight Systems prints them.
const COPIES: [(&str, &str); 14] = [
    ("unknown", "Unknown"),
    ("host_to_device", "Host-to-Device"),
    ("device_to_host", "Device-to-Host"),
    ("host_to_array", "Host-to-Array"),
    ("array_to_host", "Array-to-Host"),
    ("array_to_array", "Array-to-Array"),
    ("array_to_device", "Array-to-Device"),
    ("device_to_array", "Device-to-Array"),
    ("device_to_device", "Device-to-Device"),
    ("host_to_host", "Host-to-Host"),
    ("peer_to_peer", "Peer-to-Peer"),
    ("unified_host_to_device", "Unified Host-to-Device"),
    ("unified_device_to_host", "Unified Device-to-Host"),
    ("unified_device_to_device", "Unified Device-to-Device"),
];

/// The kind of copy that is printed like this, in any case and with any separators.
pub(super) fn copy_kind(printed: &str) -> Option<&'static str> {
    let plain = |text: &str| text.replace(['-', ' ', '_'], "").to_ascii_lowercase();
    let wanted = plain(printed);
    COPIES.iter().find(|(_, known)| plain(known) == wanted).map(|(kind, _)| *kind)
}

/// What every table needs.
struct Context<'c> {
    path: &'c str,
    /// What is added to instants.
    epoch: i64,
    gpu: Gpu,
    names: Names<'c>,
    hosts: Hosts,
}

/// The machines of a capture, by the bits above those of the process.
#[derive(Default)]
struct Hosts {
    first: Option<i64>,
}

impl Hosts {
    fn note(&mut self, key: i64, number: u64, sink: &mut Sink<'_>) {
        let host = key >> 24;
        if key >= 0 && *self.first.get_or_insert(host) != host {
            let message = "a row is of another machine or container than the first: `process` may mean two processes";
            sink.log(SEVERAL_HOSTS, message, Some(number), None);
        }
    }
}

struct Reader<'c> {
    context: Context<'c>,
    scratch: &'c Connection,
}

impl Context<'_> {
    fn reject(&self, table: &str, number: u64, row: &Row<'_>, fault: Fault, sink: &mut Sink<'_>) -> Result<()> {
        let column = row.columns.iter().position(|known| *known == fault.column).map_or(0, |at| at as u64 + 1);
        let mut raw = format!("{table} row {number}:");
        for (name, value) in row.columns.iter().zip(row.values) {
            if raw.len() < RAW_BYTES / 2 {
                let _ = match value {
                    Value::Null => Ok(()),
                    Value::Int(value) => write!(raw, " {name}={value}"),
                    Value::Real(value) => write!(raw, " {name}={value}"),
                    Value::Text(text) => write!(raw, " {name}={}", quoted(text)),
                    Value::Other(what) => write!(raw, " {name}={what}"),
                };
            }
        }
        let place = format!("{}: row {number} of `{table}`, column `{}`", self.path, fault.column);
        sink.found(1);
        sink.reject(Problem {
            line: number,
            column,
            byte_offset: 0,
            code: fault.code,
            shown: format!("{place}: expected {}, found {}\n  {raw}", fault.expected, fault.found),
            expected: format!("`{table}`.`{}`: {}", fault.column, fault.expected),
            found: fault.found,
            raw,
        })
    }

    /// The text of a number, or the number itself.
    fn name(&mut self, id: Option<i64>, sink: &mut Sink<'_>) -> Result<Rc<str>> {
        if let Some(name) = self.names.get(id)? {
            return Ok(name);
        }
        sink.log(NO_NAME, "a name is not known", None, None);
        Ok(id.map_or("unknown".into(), |id| format!("unknown {id}").into()))
    }
}

/// Refuses a table that lacks what its rows cannot do without.
fn need(path: &str, tables: &mut dyn Tables, table: &str, needed: &[&str]) -> Result<()> {
    let columns = tables.columns(table)?;
    match needed.iter().find(|name| !columns.iter().any(|known| known == *name)) {
        Some(name) => Err(Error::data(format!("expected the column `{name}` of `{table}` in `{path}`, found none"))),
        None => Ok(()),
    }
}

impl Reader<'_> {
    /// Calls of the runtime: ranges, and the launches of what comes after.
    fn runtime(&mut self, tables: &mut dyn Tables, table: &str, sink: &mut Sink<'_>) -> Result<()> {
        let Self { context, scratch } = self;
        need(context.path, tables, table, &["start"])?;
        let sql = "INSERT INTO launches VALUES (?1, ?2, ?3)
                   ON CONFLICT DO UPDATE SET start = min(start, excluded.start)";
        let mut insert = scratch.prepare(sql).map_err(|error| scratch_error(&error))?;
        tables.each(table, CALL, &mut |number, values| {
            let row = Row { columns: CALL, values };
            let parsed =
                (|| Ok((row.times(context.epoch)?, row.ids("globalTid")?, row.correlation()?, row.int("nameId")?)))();
            let ((start, duration), ids, correlation, name) = match parsed {
                Ok(parsed) => parsed,
                Err(fault) => return context.reject(table, number, &row, fault, sink),
            };
            if let Some(correlation) = correlation {
                let key = params![ids.key, correlation as i64, start];
                insert.execute(key).map_err(|error| scratch_error(&error))?;
            }
            let name = context.name(name, sink)?;
            let call = Annotation {
                name: &name,
                category: "runtime",
                start_ns: Some(start),
                duration_ns: duration,
                process: ids.process,
                thread: ids.thread,
                correlation,
                ..Annotation::default()
            };
            context.hosts.note(ids.key, number, sink);
            sink.found(1);
            context.gpu.push_annotation(&call, sink).map(drop)
        })
    }

    /// Kernels, graphs, copies or fills.
    fn work(&mut self, tables: &mut dyn Tables, table: &str, kind: Kind, sink: &mut Sink<'_>) -> Result<()> {
        let Self { context, scratch } = self;
        need(context.path, tables, table, &["start", "end"])?;
        let sql = "SELECT start FROM launches WHERE process = ?1 AND correlation = ?2";
        let mut launch = scratch.prepare(sql).map_err(|error| scratch_error(&error))?;
        tables.each(table, WORK, &mut |number, values| {
            let row = Row { columns: WORK, values };
            let (mut kernel, name, key) = match work(&row, kind, context.epoch) {
                Ok(parsed) => parsed,
                Err(fault) => return context.reject(table, number, &row, fault, sink),
            };
            let name = match name {
                Name::Text(text) => text,
                Name::Of(id) => context.name(id, sink)?,
            };
            if let Some(correlation) = kernel.correlation {
                let found = launch.query_row(params![key, correlation as i64], |row| row.get(0)).optional();
                kernel.launch_ns = found.map_err(|error| scratch_error(&error))?;
            }
            context.hosts.note(key, number, sink);
            if kernel.launch_ns.is_none() {
                let message = format!("the launch of a row of `{table}` was not captured");
                sink.log(NO_LAUNCH, &message, Some(number), None);
            }
            sink.found(1);
            context.gpu.push_kernel(&Kernel { name: &name, ..kernel }, sink).map(drop)
        })
    }

    fn ranges(&mut self, tables: &mut dyn Tables, table: &str, sink: &mut Sink<'_>) -> Result<()> {
        need(self.context.path, tables, table, &["start"])?;
        let domains = self.domains(tables, table, sink)?;
        let context = &mut self.context;
        tables.each(table, RANGE, &mut |number, values| {
            let row = Row { columns: RANGE, values };
            let (range, text) = match range(&row, context.epoch) {
                Ok(Some(parsed)) => parsed,
                Ok(None) => {
                    let message = "a row of NVTX that names a domain, a category or a thread is no range";
                    sink.log(UNNAMED_RANGE, message, Some(number), None);
                    return Ok(());
                }
                Err(fault) => return context.reject(table, number, &row, fault, sink),
            };
            let name: Rc<str> = match text {
                Name::Text(text) => text,
                Name::Of(Some(id)) => context.name(Some(id), sink)?,
                Name::Of(None) => "".into(),
            };
            let ids = row.ids("globalTid").unwrap_or_default();
            let key = row.int("domainId").ok().flatten().map(|domain| (ids.key, domain));
            context.hosts.note(ids.key, number, sink);
            let domain = key.and_then(|key| domains.get(&key)).map(String::as_str);
            sink.found(1);
            context.gpu.push_annotation(&Annotation { name: &name, domain, ..range }, sink).map(drop)
        })
    }

    /// Names of domains, by process and number.
    fn domains(
        &mut self,
        tables: &mut dyn Tables,
        table: &str,
        sink: &mut Sink<'_>,
    ) -> Result<HashMap<(i64, i64), String>> {
        let mut domains = HashMap::new();
        let context = &mut self.context;
        tables.each(table, RANGE, &mut |_, values| {
            let row = Row { columns: RANGE, values };
            if row.get("eventType") != Value::Int(DOMAIN) {
                return Ok(());
            }
            let (Ok(Some(domain)), Ok(ids)) = (row.int("domainId"), row.ids("globalTid")) else {
                return Ok(());
            };
            let name = match (row.text("text"), row.int("textId")) {
                (Ok(Some(text)), _) => Some(text.to_owned()),
                (_, Ok(id)) => context.names.get(id)?.map(|name| name.to_string()),
                _ => None,
            };
            if domains.len() >= DOMAINS {
                sink.log(LONG_NAMES, "there are more domains than are kept", None, None);
            } else if let Some(name) = name {
                domains.insert((ids.key, domain), name);
            }
            Ok(())
        })?;
        Ok(domains)
    }
}

/// A name, or where it is.
enum Name {
    Text(Rc<str>),
    Of(Option<i64>),
}

/// All of a row of work but its launch; its name, and the key of its process.
fn work(row: &Row<'_>, kind: Kind, epoch: i64) -> Found<(Kernel<'static>, Name, i64)> {
    let (start, duration) = row.times(epoch)?;
    let ids = row.ids("globalPid")?;
    let mut kernel = Kernel {
        category: "kernel",
        start_ns: Some(start),
        duration_ns: duration,
        process: ids.process,
        device: row.whole("deviceId")?,
        stream: row.whole("streamId")?,
        correlation: row.correlation()?,
        ..Kernel::default()
    };
    let name = match kind {
        Kind::Kernel => {
            kernel.grid = [row.whole("gridX")?, row.whole("gridY")?, row.whole("gridZ")?];
            kernel.block = [row.whole("blockX")?, row.whole("blockY")?, row.whole("blockZ")?];
            kernel.registers = row.whole("registersPerThread")?;
            let shared: [Option<u64>; 2] = [row.whole("staticSharedMemory")?, row.whole("dynamicSharedMemory")?];
            let known = shared.iter().any(Option::is_some);
            let sum = shared.iter().flatten().fold(0_u64, |sum, part| sum.saturating_add(*part));
            kernel.shared_bytes = known.then_some(sum);
            match row.int("demangledName")? {
                None => Name::Of(row.int("shortName")?),
                name => Name::Of(name),
            }
        }
        Kind::Graph => {
            let graph = row.int("graphId")?;
            Name::Text(graph.map_or("CUDA graph".into(), |graph| format!("CUDA graph {graph}").into()))
        }
        Kind::Copy => {
            kernel.category = "copy";
            kernel.bytes = row.whole("bytes")?;
            let number: Option<usize> = row.whole("copyKind")?;
            let (kind, printed) = number.and_then(|at| COPIES.get(at)).copied().unwrap_or(COPIES[0]);
            kernel.copy_kind = Some(kind);
            Name::Text(format!("[CUDA memcpy {printed}]").into())
        }
        Kind::Fill => {
            kernel.category = "fill";
            kernel.bytes = row.whole("bytes")?;
            Name::Text("[CUDA memset]".into())
        }
    };
    Ok((kernel, name, ids.key))
}

/// Numbers of `ENUM_NSYS_EVENT_TYPE`: marks, and what is neither a mark nor a range.
const MARKS: [i64; 2] = [34, 65];
const DOMAIN: i64 = 75;
const NO_RANGES: [i64; 12] = [32, 33, 39, 64, 72, 73, 74, DOMAIN, 76, 97, 98, 99];

/// A range without its name, and where that is; none for a row that is no range.
fn range(row: &Row<'_>, epoch: i64) -> Found<Option<(Annotation<'static>, Name)>> {
    let kind = row.int("eventType")?;
    if kind.is_some_and(|kind| NO_RANGES.contains(&kind)) {
        return Ok(None);
    }
    let (start, duration) = row.times(epoch)?;
    let Ids { process, thread, .. } = row.ids("globalTid")?;
    let name = match row.text("text")? {
        Some(text) => Name::Text(text.into()),
        None => Name::Of(row.int("textId")?),
    };
    let mark = kind.is_some_and(|kind| MARKS.contains(&kind));
    let range = Annotation {
        category: "nvtx",
        start_ns: Some(start),
        duration_ns: if mark { Some(0) } else { duration },
        process,
        thread,
        correlation: row.int("rangeId")?.map(|id| id as u64),
        ..Annotation::default()
    };
    Ok(Some((range, name)))
}
