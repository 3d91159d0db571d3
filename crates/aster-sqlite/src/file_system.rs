//! What kind of file system a store is on: one that other machines share has no locks to rely on.

use std::io;
use std::path::Path;

/// The name of the file system that holds `directory`, if it is one that several machines share.
#[cfg(target_os = "linux")]
pub(crate) fn network_file_system(directory: &Path) -> io::Result<Option<String>> {
    use std::os::unix::fs::MetadataExt;

    let kind = rustix::fs::statfs(directory)?.f_type;
    // Magic numbers have 32 bits; the field's width and sign depend on the architecture.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::unnecessary_cast,
        reason = "only the low 32 bits carry the magic number"
    )]
    let magic = kind as u32;
    if magic != FUSE {
        return Ok(shared_by_magic(magic).map(str::to_owned));
    }
    // FUSE is anything. Only the table of mounts says what, and it need not be readable.
    let device = std::fs::metadata(directory)?.dev();
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Ok(shared_by_mount(&mounts, device))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn network_file_system(_directory: &Path) -> io::Result<Option<String>> {
    Ok(None)
}

#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
const FUSE: u32 = 0x6573_5546;

/// FUSE file systems behind which other machines stand, by the subtype that they give themselves.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
const SHARED_FUSE: [&str; 12] = [
    "blobfuse",
    "blobfuse2",
    "ceph-fuse",
    "curlftpfs",
    "gcsfuse",
    "glusterfs",
    "goofys",
    "juicefs",
    "mfs",
    "rclone",
    "s3fs",
    "sshfs",
];

/// By the magic number of `statfs`.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn shared_by_magic(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x0000_6969 => "NFS",
        0x0000_517B => "SMB",
        0xFF53_4D42 => "CIFS",
        0xFE53_4D42 => "SMB2",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x0000_564C => "NCP",
        0x0BD0_0BD0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x00C3_6400 => "Ceph",
        0x0102_1997 => "9P",
        0x7461_636F => "OCFS2",
        0x0116_1970 => "GFS2",
        _ => return None,
    })
}

/// By `/proc/self/mountinfo`: the type of the mount with this device number, such as `fuse.sshfs`.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(crate) fn shared_by_mount(mounts: &str, (major, minor): (u32, u32)) -> Option<String> {
    let device = format!("{major}:{minor}");
    let kind = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let is_ours = place.split_ascii_whitespace().nth(2) == Some(&device);
        kind.split_ascii_whitespace().next().filter(|_| is_ours)
    })?;
    let subtype = kind.strip_prefix("fuse.")?;
    SHARED_FUSE.contains(&subtype).then(|| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{shared_by_magic, shared_by_mount};

    #[test]
    fn shared_file_systems_are_told_from_local_ones() {
        for (magic, name) in [
            (0x6969, "NFS"),
            (0xFF53_4D42, "CIFS"),
            (0xFE53_4D42, "SMB2"),
        ] {
            assert_eq!(shared_by_magic(magic), Some(name));
        }
        // ext4, tmpfs, xfs, btrfs, overlayfs
        for magic in [0xEF53, 0x0102_1994, 0x5846_5342, 0x9123_683E, 0x794C_7630] {
            assert_eq!(shared_by_magic(magic), None);
        }
    }

    #[test]
    fn what_stands_behind_fuse_is_told_by_the_mount() {
        let mounts = "28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            90 28 0:45 / /mnt/a\\040b rw - fuse.sshfs host:/srv rw\n\
            91 28 0:46 / /mnt/local rw - fuse.gocryptfs /x rw\n\
            92 28 0:47 / /mnt/plain rw - fuse /dev/fuse rw\n\
            garbage\n";
        let told = |minor| shared_by_mount(mounts, (0, minor));
        assert_eq!(told(45).as_deref(), Some("fuse.sshfs"));
        assert_eq!((told(46), told(47), told(48)), (None, None, None));
    }
}
