//! Where the files of a model are, told even where they cannot be opened.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use engine_io::shards::SplitName;
use serde::Serialize;

/// A file of a model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Placement {
    /// Where.
    pub path: String,
    /// Where it leads, if it is a symbolic link.
    pub link: Option<String>,
    /// Size of what is there.
    pub bytes: Option<u64>,
    /// Its number on its file system: equal ones are one file.
    pub inode: Option<u64>,
    /// Names of that file.
    pub names: Option<u64>,
    /// What is wrong with it.
    pub fault: Option<&'static str>,
}

/// All files that a path stands for: those of the set that it is of, or all of a directory.
pub fn placements(path: &Path) -> Vec<Placement> {
    let mut paths: Vec<PathBuf> = match SplitName::parse(path) {
        Some(name) => (1..=name.count).map(|no| name.sibling(no)).collect(),
        None if path.is_dir() => {
            let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path());
            entries.filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect()
        }
        None => vec![path.to_owned()],
    };
    paths.sort();
    paths.iter().map(|p| placement(p)).collect()
}

/// One file.
pub fn placement(path: &Path) -> Placement {
    let link = fs::read_link(path).ok().map(|to| to.display().to_string());
    let stat = fs::metadata(path).ok();
    let fault = match (&stat, &link) {
        (None, Some(_)) => Some("the link leads nowhere: download the file again, or repair the link"),
        (None, None) => Some("missing: download it"),
        (Some(stat), _) if !stat.is_file() => Some("no regular file"),
        (Some(stat), _) if stat.len() < 24 => Some("too short for a GGUF file: download it again"),
        _ => None,
    };
    Placement {
        path: path.display().to_string(),
        link,
        bytes: stat.as_ref().map(fs::Metadata::len),
        inode: stat.as_ref().map(MetadataExt::ino),
        names: stat.as_ref().map(MetadataExt::nlink),
        fault,
    }
}
