//! The engine's sources over stand-ins, with the bugs of the controls, each behind a switch: see the
//! crate `aster-exchange`.

include!(concat!(env!("OUT_DIR"), "/lib.rs"));
