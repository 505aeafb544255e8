//! Embeds the folders that are registries: one file there is one query, preset or template; nothing else names it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The folders, the extension that counts in each, and the list that they become.
const FOLDERS: [(&str, &str, &str); 11] = [
    ("QUERIES", "queries", "sql"),
    ("VIEWS", "views", "sql"),
    ("MODELS", "presets/model", "toml"),
    ("MACHINES", "presets/machine", "toml"),
    ("FABRICS", "presets/fabric", "toml"),
    ("PRICES", "presets/prices", "toml"),
    ("TARIFFS", "presets/tariff", "toml"),
    ("APIS", "presets/api", "toml"),
    ("ROUTES", "presets/route", "toml"),
    ("ACCURACY", "presets/accuracy", "toml"),
    ("TEMPLATES", "templates", "html"),
];

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    let mut code = String::new();
    for (list, folder, extension) in FOLDERS {
        println!("cargo::rerun-if-changed={folder}");
        let mut names = Vec::new();
        collect(&root, Path::new(folder), extension, &mut names)?;
        names.sort();
        let _ = writeln!(code, "/// Name and text of each file in `{folder}`, sorted by name.");
        let _ = writeln!(code, "pub static {list}: &[(&str, &str)] = &[");
        for path in names {
            println!("cargo::rerun-if-changed={path}");
            let inner = path.strip_prefix(folder).unwrap_or(&path).trim_start_matches('/');
            // A template is named as it is included, the others as they are typed.
            let name = if list == "TEMPLATES" { inner } else { inner.trim_end_matches(&format!(".{extension}")) };
            let _ = writeln!(
                code,
                "    ({name:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {:?}))),",
                format!("/{path}")
            );
        }
        code.push_str("];\n");
    }
    surfaces(&root, &mut code)?;
    formats(&root, &mut code)?;
    fs::write(PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?).join("embedded.rs"), code)
}

/// The files below `folder` as paths relative to `root`, with `/` as separator on every system.
fn collect(root: &Path, folder: &Path, extension: &str, names: &mut Vec<String>) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(folder)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            println!("cargo::rerun-if-changed={}", path.display());
            collect(root, &path, extension, names)?;
        } else if path.extension().is_some_and(|found| found == extension) {
            names.push(path.to_string_lossy().replace('\\', "/"));
        }
    }
    Ok(())
}

/// Surfaces are bytes, decoded on first use.
fn surfaces(root: &Path, code: &mut String) -> io::Result<()> {
    println!("cargo::rerun-if-changed=presets/surfaces");
    let mut names = Vec::new();
    collect(root, Path::new("presets/surfaces"), "parquet", &mut names)?;
    names.sort();
    let _ = writeln!(code, "/// Name and bytes of each surface in `presets/surfaces`, sorted by name.");
    let _ = writeln!(code, "pub static SURFACES: &[(&str, &[u8])] = &[");
    for path in names {
        println!("cargo::rerun-if-changed={path}");
        let name = path.trim_start_matches("presets/surfaces/").trim_end_matches(".parquet");
        let file = format!("/{path}");
        let _ = writeln!(code, "    ({name:?}, include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {file:?}))),");
    }
    code.push_str("];\n");
    Ok(())
}

/// What the module of an adapter says of its format is what a user wants to know of it: columns, dialects, and what is
/// refused.
fn formats(root: &Path, code: &mut String) -> io::Result<()> {
    println!("cargo::rerun-if-changed=src/ingest");
    let mut names = Vec::new();
    collect(root, Path::new("src/ingest"), "rs", &mut names)?;
    names.sort();
    code.push_str("/// Name of each input format and what its module says of it, sorted by name.\n");
    code.push_str("pub static FORMATS: &[(&str, &str)] = &[\n");
    for path in names {
        println!("cargo::rerun-if-changed={path}");
        let text = fs::read_to_string(root.join(&path))?;
        let Some(name) = text.split_once("static FORMAT: Format").and_then(|(_, rest)| rest.split('"').nth(1)) else {
            continue;
        };
        let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
        let said: Vec<&str> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        let _ = writeln!(code, "    ({name:?}, {:?}),", said.join("\n"));
    }
    code.push_str("];\n");
    Ok(())
}
