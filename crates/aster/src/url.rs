//! Which store a URL means.

use std::path::{Path, PathBuf};

use aster_lease::ErrorKind;

/// What [`connect`](fn@crate::connect) takes in this build, for messages.
#[cfg(feature = "sqlite")]
pub const SUPPORTED_URLS: &str = "sqlite:PATH (relative or absolute) and memory:";
/// What [`connect`](fn@crate::connect) takes in this build, for messages.
#[cfg(not(feature = "sqlite"))]
pub const SUPPORTED_URLS: &str = "memory:";

/// Stores that have a URL but are not part of this build.
const OTHER_SCHEMES: [&str; 9] = [
    "grantor",
    "group",
    "postgres",
    "postgresql",
    "etcd",
    "s3",
    "gs",
    "az",
    "sqlite",
];

/// A URL that means no store here. Nothing was opened or created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidUrl {
    /// Not a scheme that any store has, or no scheme at all.
    #[error("{url:?} is not a store URL: this build supports {SUPPORTED_URLS}")]
    Unknown {
        /// What was given.
        url: String,
    },
    /// A store of ours that was not compiled in.
    #[error("the store {scheme}: is not in this build, which supports {SUPPORTED_URLS}")]
    NotInThisBuild {
        /// The URL's scheme.
        scheme: String,
    },
    /// The scheme is known and the rest is not acceptable.
    #[error("{url:?}: {reason}")]
    Malformed {
        /// What was given.
        url: String,
        /// What is wrong and what to write instead.
        reason: &'static str,
    },
}

impl InvalidUrl {
    /// Always [`ErrorKind::FixCall`].
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::FixCall
    }
}

/// A store URL that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrl {
    /// A new store in memory.
    Memory,
    /// The SQLite file at this path.
    Sqlite(PathBuf),
}

impl StoreUrl {
    /// Reads a URL. Nothing in a path is decoded, and nothing is opened.
    ///
    /// # Errors
    ///
    /// [`InvalidUrl`], with what to write instead.
    pub fn parse(url: &str) -> Result<Self, InvalidUrl> {
        let unknown = || InvalidUrl::Unknown {
            url: url.to_owned(),
        };
        let (scheme, rest) = url.split_once(':').ok_or_else(unknown)?;
        match scheme {
            "memory" if rest.is_empty() => Ok(StoreUrl::Memory),
            "memory" => Err(malformed(url, "nothing may follow memory:")),
            "sqlite" if cfg!(feature = "sqlite") => sqlite_path(url, rest).map(StoreUrl::Sqlite),
            scheme if OTHER_SCHEMES.contains(&scheme) => Err(InvalidUrl::NotInThisBuild {
                scheme: scheme.to_owned(),
            }),
            _ => Err(unknown()),
        }
    }
}

fn sqlite_path(url: &str, rest: &str) -> Result<PathBuf, InvalidUrl> {
    let path = match rest.strip_prefix("//") {
        Some(absolute) if absolute.starts_with('/') => absolute,
        Some(_) => {
            let reason = "a host cannot stand here: write sqlite:PATH or sqlite:///ABSOLUTE/PATH";
            return Err(malformed(url, reason));
        }
        None => rest,
    };
    if path.is_empty() {
        return Err(malformed(url, "the path is missing: write sqlite:PATH"));
    }
    if path.starts_with(":memory:") {
        return Err(malformed(url, "for a store in memory write memory:"));
    }
    if path.contains('?') {
        return Err(malformed(
            url,
            "options after ? are not supported: write sqlite:PATH",
        ));
    }
    if path.contains('\0') {
        return Err(malformed(url, "a path cannot hold a NUL byte"));
    }
    if path.ends_with('/') {
        return Err(malformed(url, "this names a directory: name a file"));
    }
    Ok(Path::new(path).to_owned())
}

fn malformed(url: &str, reason: &'static str) -> InvalidUrl {
    InvalidUrl::Malformed {
        url: url.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_path_is_taken_as_it_stands() {
        for (url, path) in [
            ("sqlite:leases.db", "leases.db"),
            ("sqlite:./a/../leases.db", "./a/../leases.db"),
            ("sqlite:/var/lib/leases.db", "/var/lib/leases.db"),
            ("sqlite:///var/lib/leases.db", "/var/lib/leases.db"),
            ("sqlite:a%2Fb.db", "a%2Fb.db"),
            ("sqlite:C:x", "C:x"),
        ] {
            let expected = StoreUrl::Sqlite(PathBuf::from(path));
            assert_eq!(StoreUrl::parse(url), Ok(expected), "{url}");
        }
        assert_eq!(StoreUrl::parse("memory:"), Ok(StoreUrl::Memory));
    }

    #[test]
    fn every_other_text_is_refused_and_told_what_is_supported() {
        for url in [
            "",
            "memory",
            "leases.db",
            ":",
            "SQLITE:x",
            "mysql://x",
            "file:x",
            " memory:",
        ] {
            let error = StoreUrl::parse(url).unwrap_err();
            assert!(
                matches!(error, InvalidUrl::Unknown { .. }),
                "{url}: {error:?}"
            );
            assert!(error.to_string().contains("memory:"), "{error}");
        }
        for url in [
            "grantor:x",
            "postgres://h/d",
            "etcd://h",
            "s3://b",
            "group:a",
        ] {
            let error = StoreUrl::parse(url).unwrap_err();
            assert!(
                error.to_string().contains("not in this build"),
                "{url}: {error}"
            );
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_malformed_sqlite_url_says_what_to_write() {
        for url in [
            "memory:x",
            "memory://",
            "sqlite:",
            "sqlite://",
            "sqlite://host/x",
            "sqlite::memory:",
            "sqlite:x?mode=ro",
            "sqlite:dir/",
        ] {
            let error = StoreUrl::parse(url).unwrap_err();
            assert!(
                matches!(error, InvalidUrl::Malformed { .. }),
                "{url}: {error:?}"
            );
        }
    }
}
