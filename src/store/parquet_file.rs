//! One Parquet file: how it is written, so that the same rows give the same bytes, and how it is read back.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use engine::error::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use sha2::{Digest, Sha256};

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
    writer: ArrowWriter<Hashing>,
    rows: u64,
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
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .set_max_row_group_bytes(Some(GROUP_BYTES))
            // Without the version: a new release of the same layout writes the same bytes.
            .set_created_by("kvtoll".to_owned())
            .build();
        let hashing = Hashing { file, digest: Sha256::new(), bytes: 0 };
        let writer = ArrowWriter::try_new(hashing, schema.clone(), Some(properties));
        let writer = writer.map_err(|error| Error::run(format!("cannot write `{}`: {error}", path.display())))?;
        Ok(Self { path, schema, writer, rows: 0 })
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(super) fn append(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        let written = self.writer.write(batch);
        written.map_err(|error| Error::run(format!("cannot write `{}`: {error}", self.path.display())))
    }

    /// Ends the file and flushes it to disk.
    pub(super) fn finish(self) -> Result<Written> {
        let Self { path, writer, rows, .. } = self;
        let hashing =
            writer.into_inner().map_err(|error| Error::run(format!("cannot write `{}`: {error}", path.display())))?;
        hashing.file.sync_all().map_err(|error| super::failed("flush", &path, &error))?;
        Ok(Written { path, rows, bytes: hashing.bytes, sha256: hex(&hashing.digest.finalize()) })
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
    let damaged = |why: String| Error::data(format!("cannot read `{}`: {why}", path.display()));
    let file = File::open(path).map_err(|error| damaged(error.to_string()))?;
    let builder = sound(|| ParquetRecordBatchReaderBuilder::try_new(file)).map_err(damaged)?;
    let reader: ParquetRecordBatchReader = sound(|| builder.with_batch_size(READ_ROWS).build()).map_err(damaged)?;
    let path = path.to_owned();
    Ok(each_sound(reader)
        .map(move |batch| batch.map_err(|why| Error::data(format!("cannot read `{}`: {why}", path.display())))))
}
