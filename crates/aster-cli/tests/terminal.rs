//! A run on a terminal: its command is in the foreground, and the terminal is given back.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use support::{Running, Sandbox, eventually, signal_process, state_of};

/// The user's side of a terminal on which a script runs as the session's foreground.
struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    session: Running,
}

impl Terminal {
    fn start(sandbox: &Sandbox, script: &str) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = OpenOptions::new()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        let mut session = Command::new("setsid");
        for (name, value) in sandbox.command().get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        session
            .args(["--ctty", "--wait", "sh", "-c", script, support::ASTER])
            .current_dir(sandbox.path(""))
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave);
        let session = Running::spawn(session);
        let keyboard = File::from(master);
        let mut screen_side = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = screen.clone();
        std::thread::Builder::new()
            .spawn(move || {
                let mut chunk = [0; 1024];
                while let Ok(read @ 1..) = screen_side.read(&mut chunk) {
                    shown
                        .lock()
                        .unwrap()
                        .push_str(&String::from_utf8_lossy(&chunk[..read]));
                }
            })
            .unwrap();
        Self {
            keyboard,
            screen,
            session,
        }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        eventually(&format!("the terminal shows {text}"), || {
            self.screen.lock().unwrap().contains(text)
        });
    }

    #[track_caller]
    fn ends(self) {
        assert_eq!(
            self.session.wait(),
            Some(0),
            "{}",
            self.screen.lock().unwrap()
        );
    }
}

#[test]
fn the_command_reads_the_terminal_and_gives_it_back() {
    let sandbox = Sandbox::new();
    let script = r#""$0" run x -- sh -c 'echo ready; read line; echo "command got $line"'
        read line; echo "then got $line""#;
    let mut terminal = Terminal::start(&sandbox, script);
    terminal.shows("ready");
    terminal.types("first\n");
    terminal.shows("command got first");
    terminal.types("second\n");
    terminal.shows("then got second");
    terminal.ends();
}

#[test]
fn in_a_pipeline_the_command_gets_the_terminal_when_it_asks_for_it() {
    let sandbox = Sandbox::new();
    // `cat` stands for a pager: it has the terminal as long as the command does not read from it.
    let script = r#""$0" run x -- sh -c '
            until test -e "$DIR/looked"; do sleep 0.01; done; echo ready; read line; echo "command got $line"
        ' | sh -c '
            read -r stat < /proc/$$/stat; set -- ${stat##*) }
            test "$3" = "$6" && echo foreground > "$DIR/looked" || echo background > "$DIR/looked"; cat'
        read line; echo "then got $line""#;
    let mut terminal = Terminal::start(&sandbox, script);
    terminal.shows("ready");
    terminal.types("first\n");
    terminal.shows("command got first");
    terminal.types("second\n");
    terminal.shows("then got second");
    assert_eq!(
        sandbox.wait_for("looked"),
        "foreground",
        "where the pager is"
    );
    terminal.ends();
}

#[test]
fn an_interrupt_from_the_keyboard_reaches_the_command() {
    let sandbox = Sandbox::new();
    let script = r#""$0" run x -- sh -c 'trap "exit 4" INT; echo ready; while :; do sleep 0.05; done'
        echo "code $?"; "$0" run x -- sh -c 'echo again'"#;
    let mut terminal = Terminal::start(&sandbox, script);
    terminal.shows("ready");
    terminal.types("\x03");
    terminal.shows("code 4");
    terminal.shows("again");
    terminal.ends();
}

#[test]
fn a_job_that_is_stopped_stops_with_its_run_and_goes_on_with_it() {
    let sandbox = Sandbox::new();
    let script =
        r#""$0" run x -- sh -c 'echo "run $PPID."; read line; echo "got $line"; echo "code $?"'"#;
    let mut terminal = Terminal::start(&sandbox, script);
    terminal.shows(".");
    let screen = terminal.screen.lock().unwrap().clone();
    let run: i32 = screen
        .split("run ")
        .nth(1)
        .unwrap()
        .split('.')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    terminal.types("\x1a");
    eventually("the run is stopped", || state_of(run) == 'T');
    signal_process(run, Signal::CONT);
    eventually("the run goes on", || state_of(run) != 'T');
    terminal.types("after all\n");
    terminal.shows("got after all");
    terminal.ends();
}

#[test]
fn without_a_terminal_on_stdin_nothing_is_taken() {
    let sandbox = Sandbox::new();
    let script =
        r#""$0" run x -- sh -c 'cat; echo done' < /dev/null; read line; echo "then got $line""#;
    let mut terminal = Terminal::start(&sandbox, script);
    terminal.shows("done");
    terminal.types("typed\n");
    terminal.shows("then got typed");
    terminal.ends();
}

#[test]
fn adopting_asks_on_a_terminal() {
    let sandbox = Sandbox::new();
    sandbox
        .aster(&["run", "x", "--", "aster", "put", "v1"])
        .exits(0);
    std::fs::copy(sandbox.database(), sandbox.path("copy.db")).unwrap();
    let script = r#"export ASTER_STORE=sqlite:copy.db
        "$0" store adopt; echo "first $?"; "$0" get x; echo "get $?"
        "$0" store adopt; echo "second $?"; "$0" get x; echo "get $?""#;
    let mut terminal = Terminal::start(&sandbox, script);
    terminal.shows("[y/N]");
    terminal.types("\n");
    terminal.shows("first 64");
    terminal.shows("get 78");
    terminal.types("y\n");
    terminal.shows("second 0");
    terminal.shows("v1");
    terminal.shows("get 0");
    terminal.ends();
}

#[test]
fn a_value_does_not_act_on_the_terminal_that_shows_it() {
    let sandbox = Sandbox::new();
    sandbox
        .aster(&[
            "run",
            "x",
            "--",
            "aster",
            "put",
            "two\nlines \u{1b}[2J\u{202e}",
        ])
        .exits(0);
    let terminal = Terminal::start(&sandbox, r#""$0" get x; "$0" get x | od -An -c"#);
    terminal.shows(r"lines \u{1b}[2J\u{202e}");
    // Everywhere else it is what it is.
    terminal.shows("033");
    terminal.ends();
}
