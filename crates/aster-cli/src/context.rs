//! What every command needs: how to print, which store, who acts.

use std::ffi::OsString;
use std::path::PathBuf;

use aster::StoreUrl;
use aster::lease::{Store, connect, connect_existing};

use crate::arguments::GlobalOptions;
use crate::failure::{Failure, FailureKind};
use crate::identity::Identity;
use crate::locations;
use crate::output::Output;

/// The global options, read once.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) output: Output,
    options: GlobalOptions,
    default_store: Result<PathBuf, Failure>,
    default_identity: Result<PathBuf, Failure>,
}

impl Context {
    /// Takes from the environment what the command line does not say. Read here and not by clap, which would show
    /// an option as required in its errors when a variable sets it.
    pub(crate) fn new(output: Output, options: GlobalOptions) -> Result<Self, Failure> {
        Self::within(output, options, |name| std::env::var_os(name))
    }

    /// The same in an environment of the caller's.
    pub(crate) fn within(
        output: Output,
        mut options: GlobalOptions,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        if options.store.is_none() {
            options.store = match environment("ASTER_STORE").map(OsString::into_string) {
                // The default store instead would silently be another lock than the others'.
                Some(Ok(url)) if url.is_empty() => {
                    let message = "ASTER_STORE is set and empty: name a store, or unset it for the \
                                   default one";
                    return Err(Failure::new(FailureKind::InvalidInput, message));
                }
                Some(Ok(url)) => Some(url),
                Some(Err(_)) => {
                    let message = "ASTER_STORE is not UTF-8: a store's URL is";
                    return Err(Failure::new(FailureKind::InvalidInput, message));
                }
                None => None,
            };
        }
        if options.identity.is_none() {
            options.identity = environment("ASTER_IDENTITY")
                .filter(|path| !path.is_empty())
                .map(PathBuf::from);
        }
        Ok(Self {
            output,
            options,
            default_store: locations::default_store(&environment),
            default_identity: locations::default_identity(&environment),
        })
    }

    pub(crate) fn identity(&self) -> Result<Identity, Failure> {
        let path = match &self.options.identity {
            Some(path) => path.clone(),
            None => self.default_identity.clone()?,
        };
        // Absolute, because the command of a run may change its directory.
        let path = std::path::absolute(&path).map_err(|error| {
            Failure::new(
                FailureKind::InvalidInput,
                format!("--identity {}: {error}", path.display()),
            )
        })?;
        Identity::load_or_create(&path)
    }

    /// Opens the store. The directory of the default one is created if it is missing.
    pub(crate) async fn connect(&self) -> Result<Store, Failure> {
        if self.options.store.is_none() {
            locations::create_private_parent(&self.default_store.clone()?)?;
        }
        Ok(connect(&self.store_url()?).await?)
    }

    /// Opens a store that is there already: who only looks must not make one by mistyping its path.
    pub(crate) async fn connect_existing(&self) -> Result<Store, Failure> {
        Ok(connect_existing(&self.store_url()?).await?)
    }

    pub(crate) fn store_url(&self) -> Result<String, Failure> {
        match &self.options.store {
            Some(url) => Ok(url.clone()),
            None => url_of(self.default_store.clone()?),
        }
    }

    /// The same store from any directory.
    pub(crate) fn absolute_store_url(&self) -> Result<String, Failure> {
        let url = self.store_url()?;
        match StoreUrl::parse(&url) {
            Ok(StoreUrl::Sqlite(path)) if path.is_relative() => {
                let absolute = std::path::absolute(path).map_err(|error| {
                    Failure::new(FailureKind::InvalidInput, format!("--store {url}: {error}"))
                })?;
                url_of(absolute)
            }
            _ => Ok(url),
        }
    }
}

/// An empty variable is one that is not set.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn url_of(path: PathBuf) -> Result<String, Failure> {
    match path.to_str() {
        // `sqlite:` and two slashes would be the beginning of a host.
        Some(path) if path.starts_with("//") => Ok(format!("sqlite://{path}")),
        Some(path) => Ok(format!("sqlite:{path}")),
        None => Err(Failure::new(
            FailureKind::InvalidInput,
            format!("{} is not UTF-8: give --store", path.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_path_means_that_path() {
        for path in [
            "leases.db",
            "/var/lib/leases.db",
            "//data/leases.db",
            "///data/leases.db",
        ] {
            let url = url_of(PathBuf::from(path)).unwrap();
            assert_eq!(
                StoreUrl::parse(&url),
                Ok(StoreUrl::Sqlite(path.into())),
                "{url}"
            );
        }
    }
}
