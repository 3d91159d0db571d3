//! Where the repository is, and which files belong to it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository on disk, or a made-up one in a test.
#[derive(Debug)]
pub(crate) struct Repository {
    root: PathBuf,
    /// Paths relative to the root, with `/` between their parts.
    files: Vec<String>,
}

impl Repository {
    /// The repository that this program was built from.
    pub(crate) fn find() -> Result<Self, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .ok_or("this crate has no parent directory")?;
        Self::at(root)
    }

    fn at(root: &Path) -> Result<Self, String> {
        // Untracked files count too, so that a new file is checked before it is added.
        let output = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(root)
            .output()
            .map_err(|error| format!("git ls-files: {error} (is git installed?)"))?;
        if !output.status.success() {
            return Err(format!(
                "git ls-files: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        let mut files: Vec<String> = String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter(|path| !path.is_empty() && root.join(path).is_file())
            .map(str::to_owned)
            .collect();
        files.sort();
        files.dedup();
        Ok(Self {
            root: root.to_owned(),
            files,
        })
    }

    #[cfg(test)]
    pub(crate) fn made_of(root: &Path, files: &[(&str, &str)]) -> Self {
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Self {
            root: root.to_owned(),
            files: files.iter().map(|(path, _)| (*path).to_owned()).collect(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The files, relative to the root.
    pub(crate) fn files(&self) -> &[String] {
        &self.files
    }

    /// Whether `path`, relative to the root, exists as a file or a directory.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// The text of one file.
    pub(crate) fn read(&self, path: &str) -> Result<String, String> {
        std::fs::read_to_string(self.root.join(path)).map_err(|error| format!("{path}: {error}"))
    }

    /// Every text file whose path `wanted` accepts. Files that are not UTF-8 are fixtures: skipped.
    pub(crate) fn texts(&self, wanted: impl Fn(&str) -> bool) -> Vec<(&str, String)> {
        self.files
            .iter()
            .filter(|path| wanted(path))
            .filter_map(|path| {
                let bytes = std::fs::read(self.root.join(path)).ok()?;
                Some((path.as_str(), String::from_utf8(bytes).ok()?))
            })
            .collect()
    }
}
