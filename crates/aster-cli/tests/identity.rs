//! The identity file: private, whole, and refused when it is not.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use support::{Sandbox, mode_of};

fn identity_of(sandbox: &Sandbox) -> std::path::PathBuf {
    sandbox.path("identity-a")
}

#[test]
fn it_is_created_once_for_its_user_only() {
    let sandbox = Sandbox::new();
    let first = sandbox.aster(&["id"]).exits(0).stdout;
    assert_eq!(first.trim().len(), 32);
    assert_eq!(mode_of(&identity_of(&sandbox)), 0o600);
    assert_eq!(sandbox.aster(&["id"]).exits(0).stdout, first);
    assert_ne!(sandbox.aster_as("b", &["id"]).exits(0).stdout, first);
    let json = sandbox.aster(&["id", "--json"]).exits(0).json();
    assert_eq!(json["id"], first.trim());
    // The umask does not matter, and neither does a missing directory.
    let mut command = std::process::Command::new("sh");
    command
        .args([
            "-c",
            r#"umask 0; exec "$0" --identity sub/dir/identity id"#,
            support::ASTER,
        ])
        .current_dir(sandbox.path(""));
    support::start(command).finish().exits(0);
    assert_eq!(mode_of(&sandbox.path("sub/dir/identity")), 0o600);
    assert_eq!(mode_of(&sandbox.path("sub")), 0o700);
    let left: Vec<_> = fs::read_dir(sandbox.path("sub/dir")).unwrap().collect();
    assert_eq!(left.len(), 1, "no temporary file is left");
}

#[test]
fn many_that_create_it_at_once_agree() {
    let sandbox = Sandbox::new();
    let running: Vec<_> = (0..12).map(|_| sandbox.start(&["id"])).collect();
    let mut ids: Vec<_> = running
        .into_iter()
        .map(|process| process.finish().exits(0).stdout)
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
}

#[test]
fn it_is_refused_when_others_can_read_or_write_it() {
    let sandbox = Sandbox::new();
    sandbox.aster(&["id"]).exits(0);
    for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o666, 0o644] {
        fs::set_permissions(identity_of(&sandbox), fs::Permissions::from_mode(mode)).unwrap();
        for command in [
            &["id"][..],
            &["run", "x", "--", "touch", "ran"],
            &["revoke", "x"],
        ] {
            let refused = sandbox.aster(command).exits(64);
            assert!(
                refused.stderr.contains("chmod 600"),
                "{mode:o}: {refused:?}"
            );
        }
    }
    assert!(!sandbox.exists("ran"));
    for mode in [0o600, 0o400] {
        fs::set_permissions(identity_of(&sandbox), fs::Permissions::from_mode(mode)).unwrap();
        sandbox.aster(&["id"]).exits(0);
    }
}

#[test]
fn anything_else_in_its_place_is_refused_and_left_alone() {
    let sandbox = Sandbox::new();
    let id = format!("aster-identity-1 {}\n", "0".repeat(32));
    let long = id.repeat(1_000);
    // Read up to a bound, which may stand in the middle of a letter.
    let cut = format!("{}é", "x".repeat(255));
    for content in [
        &b""[..],
        b"\n",
        b"aster-identity-1 xyz\n",
        b"aster-identity-2 00000000000000000000000000000000\n",
        b"aster-identity-1 \xff\xfe\n",
        id.trim_end().as_bytes(),
        long.as_bytes(),
        cut.as_bytes(),
    ] {
        fs::write(identity_of(&sandbox), content).unwrap();
        fs::set_permissions(identity_of(&sandbox), fs::Permissions::from_mode(0o600)).unwrap();
        let refused = sandbox.aster(&["id"]).exits(64);
        assert!(
            refused.stderr.contains("damaged"),
            "{content:?}: {refused:?}"
        );
        assert_eq!(fs::read(identity_of(&sandbox)).unwrap(), content);
    }
    fs::remove_file(identity_of(&sandbox)).unwrap();
    fs::create_dir(identity_of(&sandbox)).unwrap();
    sandbox.aster(&["id"]).exits(64);
    fs::remove_dir(identity_of(&sandbox)).unwrap();
    // A pipe must not make us wait for a writer.
    let pipe = std::process::Command::new("mkfifo")
        .arg(identity_of(&sandbox))
        .status();
    assert!(pipe.unwrap().success());
    sandbox.aster(&["id"]).exits(64);
    fs::remove_file(identity_of(&sandbox)).unwrap();
    // A dangling link is not followed to create a file somewhere else.
    symlink(sandbox.path("elsewhere"), identity_of(&sandbox)).unwrap();
    sandbox.aster(&["id"]).exits(74);
    assert!(!sandbox.exists("elsewhere"));
}
