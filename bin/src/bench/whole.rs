//! Files that are whole or as they were: written beside their place, then renamed to it.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{file}: cannot be written: {source}")]
pub struct WriteError {
    /// The file.
    pub file: String,
    /// The system's reason.
    pub source: io::Error,
}

/// The folder that a file lies in.
pub fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file, and the folders it lies in.
///
/// # Errors
/// What the system says; the file is then what it was before.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    let done = || -> io::Result<()> {
        let folder = folder(path);
        fs::create_dir_all(folder)?;
        let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    done().map_err(|source| WriteError { file: path.display().to_string(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.txt");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
        let error = write(folder.path(), b"x").unwrap_err();
        assert!(error.to_string().contains("cannot be written"), "{error}");
        assert!(folder.path().is_dir());
    }
}
