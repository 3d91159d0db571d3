//! The doors by which the fuzz targets reach what this store parses beside its files. No part of what is
//! promised.
#![allow(missing_docs, reason = "only the fuzz targets come in here")]

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use aster_core::ResourceName;

use crate::{domain, file_system, side, target, wake};

/// What a process hears when others send it these datagrams, beside a file at `main`.
pub fn hear(main: &Path, datagrams: &[&[u8]]) -> io::Result<Vec<ResourceName>> {
    let process = [7; 8];
    let mailbox = wake::Mailbox::bind(main, process)?;
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    let address = wake::path_of(main, process);
    for datagram in datagrams {
        // A full mailbox takes no more, and need not.
        let _ = sender.send_to(datagram, &address);
    }
    Ok(mailbox.hear())
}

pub fn process_of(digits: &[u8]) -> Option<[u8; 8]> {
    wake::process_of(digits)
}

pub fn owner_of_socket(name: &[u8]) -> Option<&[u8]> {
    target::owner_of_socket(name)
}

#[cfg(target_os = "linux")]
pub fn boot_offset(offsets: &str) -> Option<String> {
    domain::boot_offset(offsets)
}

pub fn boot_of(domain: &str) -> &str {
    side::boot_of(domain)
}

pub fn shared_by_mount(mounts: &str, device: (u32, u32)) -> Option<String> {
    file_system::shared_by_mount(mounts, device)
}
