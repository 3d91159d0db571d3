//! The private socket: bounded, private, and unmoved by nonsense.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use support::{Running, Sandbox, mode_of, tell_pid};

/// A run that waits for the file `end` and then publishes.
fn start(sandbox: &Sandbox) -> (Running, PathBuf) {
    let script = format!(
        r#"printf %s "$ASTER_SOCKET" > "$DIR/socket.new"; mv "$DIR/socket.new" "$DIR/socket"; {}
           while ! test -e "$DIR/end"; do sleep 0.01; done; aster put still-works"#,
        tell_pid("pid")
    );
    let run = sandbox.run_script("a", "30s", &script);
    sandbox.wait_for("pid");
    let socket = PathBuf::from(sandbox.wait_for("socket"));
    (run, socket)
}

fn publishes_after_all(sandbox: &Sandbox, run: Running) {
    sandbox.touch("end");
    run.finish().exits(0);
    assert_eq!(sandbox.value(), "still-works");
}

fn frame(header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(u32::try_from(header.len()).unwrap().to_be_bytes());
    frame.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    frame.extend(header);
    frame.extend(body);
    frame
}

#[test]
fn only_its_user_can_reach_it() {
    let sandbox = Sandbox::new();
    let (run, socket) = start(&sandbox);
    assert_eq!(mode_of(socket.parent().unwrap()), 0o700);

    // Even where the file system lets others in, the peer's user is asked of the kernel.
    if rustix::process::geteuid().is_root() {
        use std::os::unix::fs::PermissionsExt;
        let mut open = vec![socket.as_path()];
        open.extend(
            socket
                .ancestors()
                .skip(1)
                .take_while(|path| path.starts_with(sandbox.path(""))),
        );
        for path in open {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let program = sandbox.path("aster");
        std::fs::copy(support::ASTER, &program).unwrap();
        let mut other = std::process::Command::new("setpriv");
        other
            .args([
                "--reuid",
                "65534",
                "--regid",
                "65534",
                "--clear-groups",
                "--",
            ])
            .arg(&program)
            .arg("fence")
            .env("ASTER_SOCKET", &socket);
        let refused = support::start(other).finish().exits(69);
        assert!(refused.stderr.contains("no answer"), "{refused:?}");
        // The same program as the right user is answered.
        let mut own = sandbox.command();
        own.env("ASTER_SOCKET", &socket).arg("fence");
        support::start(own).finish().exits(0);
    }
    publishes_after_all(&sandbox, run);
}

#[test]
fn nonsense_closes_its_own_connection_and_nothing_else() {
    let sandbox = Sandbox::new();
    let (run, socket) = start(&sandbox);
    let put = br#"{"request":"put","expect":"any","write_id":"00000000000000000000000000000000"}"#;
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        vec![0; 8],
        frame(b"{}", b""),
        frame(b"not json at all", b""),
        frame(br#"{"request":"fly"}"#, b""),
        frame(
            br#"{"request":"put","expect":"any","write_id":"short"}"#,
            b"",
        ),
        // A value one byte over the bound, and a header over its.
        [
            &u32::try_from(put.len()).unwrap().to_be_bytes()[..],
            &1_048_577_u32.to_be_bytes(),
            put,
        ]
        .concat(),
        [&8_193_u32.to_be_bytes()[..], &0_u32.to_be_bytes()].concat(),
    ] {
        let mut peer = UnixStream::connect(&socket).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let _ = peer.write_all(&bytes);
        let mut answer = Vec::new();
        // Closed, without an answer; an error here means that it was closed before all was sent.
        let _ = peer.read_to_end(&mut answer);
        assert_eq!(answer, b"", "{bytes:?}");
    }
    // An identity or a fence in a request would be ignored: there is no such field to read.
    let mut peer = UnixStream::connect(&socket).unwrap();
    let header = br#"{"request":"put","expect":"any","write_id":"00000000000000000000000000000001","writer":"mallory"}"#;
    peer.write_all(&frame(header, b"by the run")).unwrap();
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("written"));
    let holder = sandbox.row()["holder"].clone();
    assert_eq!(
        sandbox.aster(&["id"]).exits(0).stdout.trim(),
        holder.as_str().unwrap()
    );
    publishes_after_all(&sandbox, run);
}

#[test]
fn many_idle_connections_keep_nobody_out_for_long() {
    let sandbox = Sandbox::new();
    let (run, socket) = start(&sandbox);
    // More than are served at once, and all of them silent.
    let idle: Vec<_> = (0..100)
        .map(|_| UnixStream::connect(&socket).unwrap())
        .collect();
    publishes_after_all(&sandbox, run);
    drop(idle);
}

#[test]
fn many_commands_at_once_are_all_served() {
    let sandbox = Sandbox::new();
    let script = r#"
        for i in $(seq 40); do aster put "value-$i" & pids="$pids $!"; done
        for pid in $pids; do wait "$pid" || exit 9; done; aster get --json"#;
    let finished = sandbox.run_script("a", "30s", script).finish().exits(0);
    let register = finished.json();
    assert_eq!(
        register["value_revision"], 40,
        "each write counted once: {register}"
    );
}

#[test]
fn a_command_that_outlives_its_run_hears_that_the_lease_has_ended() {
    let sandbox = Sandbox::new();
    let late = |socket: &std::path::Path, arguments: &[&str]| {
        let mut command = sandbox.command();
        command
            .env("ASTER_SOCKET", socket)
            .env("ASTER_RESOURCE", support::CATALOG)
            .arg("--json")
            .args(arguments);
        support::start(command).finish()
    };
    let (run, socket) = start(&sandbox);
    publishes_after_all(&sandbox, run);
    assert!(!socket.exists(), "the run has taken its socket with it");
    // What a run that was killed together with its guard leaves behind: a socket that nobody listens at.
    let orphan = sandbox.path("orphan");
    drop(std::os::unix::net::UnixListener::bind(&orphan).unwrap());
    for socket in [&socket, &orphan] {
        for arguments in [
            &["put", "late"][..],
            &["get"],
            &["get", support::CATALOG],
            &["fence"],
        ] {
            let error = late(socket, arguments).exits(76).json_error();
            assert_eq!(error["kind"], "lease_lost", "{arguments:?}: {error}");
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains("has ended, and so has its lease"),
                "{arguments:?}: {error}"
            );
        }
    }
    assert_ne!(sandbox.value(), "late");
}
