//! The engine's own sources, over stand-ins for std's locks and for tokio: see the crate
//! `aster-exchange`.

include!(concat!(env!("OUT_DIR"), "/lib.rs"));
