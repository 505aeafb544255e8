//! One Parquet file: how it is written, so that the same rows give the same bytes, and how it is read back.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use engine::error::{Error, Result};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, PageStoreFactory, compute_leaves};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;
use sha2::{Digest, Sha256};

use super::checksums::{Columns, Pages};
use super::ids::{self, Ids};
use crate::unbroken::{each_sound, sound};

/// The most rows of a row group.
const GROUP_ROWS: usize = 1 << 20;

/// The most encoded bytes of a row group: long lists must not make a writer hold a million rows in memory.
const GROUP_BYTES: usize = 64 << 20;

/// The level of zstd: columns are packed already, and higher levels take twice the time for a few percent.
const LEVEL: i32 = 1;

/// Rows per batch when a file is read.
const READ_ROWS: usize = 8192;

/// A Parquet file being written.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    schema: SchemaRef,
    file: SerializedFileWriter<Hashing>,
    columns: ArrowRowGroupWriterFactory,
    pages: Arc<Columns>,
    group: Option<Group>,
    rows: u64,
}

/// A row group in memory.
#[derive(Debug)]
struct Group {
    columns: Vec<Column>,
    rows: usize,
}

/// A column of a row group; a field of structures has several.
#[derive(Debug)]
enum Column {
    Plain(Box<ArrowColumnWriter>, Pages),
    Ids(Box<Ids>),
}

/// A written file: its rows, bytes and hash.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) path: PathBuf,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl Part {
    /// Starts the file `path`, which must not exist yet.
    pub(super) fn create(path: PathBuf, schema: SchemaRef) -> Result<Self> {
        let file = File::create_new(&path).map_err(|error| super::failed("write", &path, &error))?;
        let level = ZstdLevel::try_new(LEVEL).map_err(|error| Error::run(error.to_string()))?;
        let properties = encoded(WriterProperties::builder(), &schema)
            .set_compression(Compression::ZSTD(level))
            .set_dictionary_enabled(true)
            // Without the version: a new release of the same layout writes the same bytes.
            .set_created_by("kvtoll".to_owned())
            .build();
        let hashing = Hashing { file, digest: Sha256::new(), bytes: 0 };
        let writer = ArrowWriter::try_new(hashing, schema.clone(), Some(properties));
        let writer = writer.and_then(ArrowWriter::into_serialized_writer);
        let (file, columns) = writer.map_err(|error| unwritten(&path, &error))?;
        let pages = Arc::new(Columns::default());
        let columns = columns.with_page_store_factory(Arc::clone(&pages) as Arc<dyn PageStoreFactory>);
        Ok(Self { path, schema, file, columns, pages, group: None, rows: 0 })
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(super) fn append(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        self.write(batch).map_err(|error| unwritten(&self.path, &error))
    }

    /// Writes rows into as many row groups as their limits ask for.
    fn write(&mut self, batch: &RecordBatch) -> std::result::Result<(), ParquetError> {
        let mut from = 0;
        while from < batch.num_rows() {
            let group = match &mut self.group {
                Some(group) => group,
                none => none.insert(Group::new(&self.file, (&self.columns, &self.pages), &self.schema)?),
            };
            let count = group.room().min(batch.num_rows() - from);
            group.write(&self.schema, &batch.slice(from, count))?;
            from += count;
            if group.room() == 0 {
                self.end_group()?;
            }
        }
        Ok(())
    }

    fn end_group(&mut self) -> std::result::Result<(), ParquetError> {
        let Some(group) = self.group.take() else { return Ok(()) };
        let mut out = self.file.next_row_group()?;
        for column in group.columns {
            let (bytes, close) = match column {
                Column::Plain(writer, pages) => pages.close(writer.close()?.close().clone())?,
                Column::Ids(ids) => ids.close()?,
            };
            out.append_column(&bytes, close)?;
        }
        out.close().map(drop)
    }

    /// Ends the file and flushes it to disk.
    pub(super) fn finish(mut self) -> Result<Written> {
        let ended = self.end_group().and_then(|()| self.file.into_inner());
        let Self { path, rows, .. } = self;
        let hashing = ended.map_err(|error| unwritten(&path, &error))?;
        hashing.file.sync_all().map_err(|error| super::failed("flush", &path, &error))?;
        Ok(Written { path, rows, bytes: hashing.bytes, sha256: hex(&hashing.digest.finalize()) })
    }
}

fn unlike(column: &str) -> ParquetError {
    ParquetError::General(format!("the column `{column}` has another type than the file"))
}

fn unwritten(path: &Path, error: &ParquetError) -> Error {
    Error::run(format!("cannot write `{}`: {error}", path.display()))
}

impl Group {
    fn new(
        file: &SerializedFileWriter<Hashing>,
        (columns, pages): (&ArrowRowGroupWriterFactory, &Columns),
        schema: &SchemaRef,
    ) -> std::result::Result<Self, ParquetError> {
        let leaves = file.schema_descr();
        let writers = columns.create_column_writers(file.flushed_row_groups().len())?;
        let pages = pages.begun();
        let column =
            |(at, (writer, pages)): (usize, (ArrowColumnWriter, Pages))| -> std::result::Result<_, ParquetError> {
                let is_ids = schema.fields().get(leaves.get_column_root_idx(at)).is_some_and(|field| ids::fits(field));
                Ok(if is_ids {
                    let descriptor = leaves.column(at);
                    let codec = file.properties().compression(descriptor.path());
                    Column::Ids(Box::new(Ids::new(descriptor, codec, LEVEL)?))
                } else {
                    Column::Plain(Box::new(writer), pages)
                })
            };
        let columns = writers.into_iter().zip(pages).enumerate().map(column).collect::<std::result::Result<_, _>>()?;
        Ok(Self { columns, rows: 0 })
    }

    /// Rows that may still come; by their bytes as many as fit if they are like those before.
    fn room(&self) -> usize {
        let of_column = |column: &Column| match column {
            Column::Plain(writer, _) => writer.get_estimated_total_bytes(),
            Column::Ids(ids) => ids.bytes(),
        };
        let bytes: usize = self.columns.iter().map(of_column).sum();
        let by_bytes = match (bytes, self.rows) {
            (0, _) | (_, 0) => GROUP_ROWS,
            (bytes, _) if bytes >= GROUP_BYTES => 0,
            (bytes, rows) => ((GROUP_BYTES - bytes) as u128 * rows as u128 / bytes as u128) as usize,
        };
        by_bytes.min(GROUP_ROWS.saturating_sub(self.rows))
    }

    fn write(&mut self, schema: &SchemaRef, batch: &RecordBatch) -> std::result::Result<(), ParquetError> {
        self.rows += batch.num_rows();
        let mut columns = self.columns.iter_mut();
        for (field, array) in schema.fields().iter().zip(batch.columns()) {
            if ids::fits(field) {
                match (columns.next(), array.as_list_opt::<i32>()) {
                    (Some(Column::Ids(ids)), Some(lists)) => ids.append(lists)?,
                    _ => return Err(unlike(field.name())),
                }
                continue;
            }
            for leaf in compute_leaves(field, array)? {
                match columns.next() {
                    Some(Column::Plain(writer, _)) => writer.write(&leaf)?,
                    _ => return Err(unlike(field.name())),
                }
            }
        }
        Ok(())
    }
}

/// Chooses how columns are encoded where a dictionary is the wrong choice.
///
/// Block ids come in runs (46, 47, 48, ...) and are seldom repeated within a dictionary's reach, and numbers of rows and
/// instants grow slowly: differences of neighbours are small, take a byte or less, and are found without a hash table.
/// Counts of tokens take as many bits either way.
/// Nobody prunes by the smallest id of a list, so that lists carry no statistics.
fn encoded(builder: WriterPropertiesBuilder, schema: &SchemaRef) -> WriterPropertiesBuilder {
    schema.fields().iter().fold(builder, |builder, field| {
        let name = field.name().clone();
        let (path, item) = match field.data_type() {
            DataType::List(item) => {
                (ColumnPath::from(vec![name, "list".to_owned(), item.name().clone()]), item.data_type())
            }
            other => (ColumnPath::from(name), other),
        };
        let list = matches!(field.data_type(), DataType::List(_));
        let builder = match item {
            DataType::UInt64 | DataType::Int64 | DataType::UInt32 => builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED),
            _ => builder,
        };
        if list { builder.set_column_statistics_enabled(path, EnabledStatistics::None) } else { builder }
    })
}

/// A file that hashes what goes into it.
#[derive(Debug)]
struct Hashing {
    file: File,
    digest: Sha256,
    bytes: u64,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.digest.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The batches of a Parquet file in order.
///
/// # Errors
/// A file that is missing or is no Parquet; later, a damaged page.
pub(crate) fn batches_of(path: &Path) -> Result<impl Iterator<Item = Result<RecordBatch>>> {
    let file = File::open(path).map_err(|error| Error::data(format!("cannot read `{}`: {error}", path.display())))?;
    let unlike = |why: String| damaged(path, &why);
    let builder = sound(|| ParquetRecordBatchReaderBuilder::try_new(file)).map_err(unlike)?;
    let reader: ParquetRecordBatchReader = sound(|| builder.with_batch_size(READ_ROWS).build()).map_err(unlike)?;
    let path = path.to_owned();
    Ok(each_sound(reader).map(move |batch| batch.map_err(|why| damaged(&path, &why))))
}

/// What is said of a file that cannot be decoded, with the column that is damaged where one is; `why` is the reader's word.
pub(crate) fn damaged(path: &Path, why: &str) -> Error {
    damaged_in(path, damaged_column(path).as_deref(), why)
}

/// The same where the column has been looked for.
pub(crate) fn damaged_in(path: &Path, column: Option<&str>, why: &str) -> Error {
    let shown = path.display();
    let reason = match why {
        _ if why.contains("CRC checksum mismatch") => "a page is not as it was written".to_owned(),
        _ if ["Invalid Parquet file", "Corrupt footer", "EOF"].iter().any(|word| why.contains(word)) => {
            "expected a whole Parquet file, found other bytes or a part of one".to_owned()
        }
        _ => format!("it cannot be decoded ({why})"),
    };
    let error = match column {
        Some(column) => Error::data(format!("cannot read `{shown}`: column `{column}`: {reason}")),
        None => Error::data(format!("cannot read `{shown}`: {reason}")),
    };
    error.hint("`kvtoll check STORE` names every damaged file; ingest its source into a new store, or replay again")
}

/// The first column of a file that cannot be read to its end; `None` where all can, or the file has no readable columns.
pub(crate) fn damaged_column(path: &Path) -> Option<String> {
    let open = || sound(|| ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)).ok();
    let columns = open()?.parquet_schema().num_columns();
    (0..columns).find_map(|at| {
        let builder = open()?;
        let name = builder.parquet_schema().column(at).path().parts().first()?.clone();
        let mask = ProjectionMask::leaves(builder.parquet_schema(), [at]);
        let rows = usize::try_from(builder.metadata().file_metadata().num_rows()).ok();
        let reader = sound(|| builder.with_projection(mask).with_batch_size(READ_ROWS).build());
        // A page whose header is damaged may end early, which the reader of one column alone takes for the end.
        let found: std::result::Result<usize, String> =
            reader.and_then(|reader| each_sound(reader).map(|batch| batch.map(|batch| batch.num_rows())).sum());
        let is_whole = found.ok() == rows;
        (!is_whole).then_some(name)
    })
}

#[cfg(test)]
mod tests;
