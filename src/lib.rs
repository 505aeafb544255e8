//! kvtoll as a library: ingestion, the store, SQL over it, the report, and the commands that join them.

pub mod accuracy;
pub mod cli;
pub mod command;
pub mod embedded;
pub mod ingest;
pub mod model_config;
pub mod output;
pub mod report;
pub mod scenario;
pub mod shipped;
pub mod sql;
pub mod store;
pub mod surfaces;
mod unbroken;
mod wording;
