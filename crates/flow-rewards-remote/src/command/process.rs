//! One process of the program: lines in, lines out, and what it said on standard error.
//!
//! Pipes are read and written by threads of their own, so that a process that neither reads nor writes is met by the time-out
//! and stops nobody. The threads end with the pipes.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::score::excerpt;

/// The longest line of an answer, in bytes.
const LONGEST_LINE: u64 = 1 << 16;
/// Lines of standard error that an error shows.
const LAST_LINES: usize = 10;
/// How long a process may take to end by itself.
const ENDING: Duration = Duration::from_secs(2);

/// Why a process gave no answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// Another process may give one.
    Passing(String),
    /// Another one would fail in the same way.
    Lasting(String),
}

/// What is started.
#[derive(Debug)]
pub(super) struct Program {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Where it runs.
    pub base: PathBuf,
    /// For each answer.
    pub timeout: Duration,
    /// For the first answer of a process.
    pub start_timeout: Duration,
}

impl Program {
    /// Starts a process.
    pub(super) fn start(&self) -> Result<Process, Fault> {
        let failed = |error: io::Error| Fault::Lasting(format!("cannot be started: {error}"));
        let base = std::path::absolute(match self.base.as_os_str().is_empty() {
            true => Path::new("."),
            false => &self.base,
        });
        let base = base.map_err(failed)?;
        let (program, arguments) = self.command.split_first().ok_or_else(|| {
            // Settings without a program were refused.
            Fault::Lasting("names no program".to_owned())
        })?;
        // A name is looked up as a shell does; a path starts in the folder of the config, on every system.
        let program = match Path::new(program).components().count() {
            0 | 1 => PathBuf::from(program),
            _ => base.join(program),
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(base)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Ctrl-C is for the run, which ends the process when it has finished its step.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(failed)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(Fault::Lasting("has no pipes".to_owned()));
        };
        let (requests, lines) = channel();
        let (answer, answers) = sync_channel(1);
        let (said_all, has_said_all) = channel();
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&said);
        thread::spawn(move || write(stdin, &lines));
        thread::spawn(move || read(stdout, &answer));
        thread::spawn(move || keep(stderr, &kept, &said_all));
        Ok(Process {
            child,
            requests: Some(requests),
            answers,
            said,
            has_said_all,
            has_answered: false,
        })
    }
}

/// A process that runs.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    requests: Option<Sender<Vec<u8>>>,
    answers: Receiver<Result<Vec<u8>, Fault>>,
    said: Arc<Mutex<VecDeque<String>>>,
    has_said_all: Receiver<()>,
    has_answered: bool,
}

impl Process {
    /// The answer to a line. After a fault the process is of no use.
    pub(super) fn ask(&mut self, line: &[u8], program: &Program) -> Result<Vec<u8>, Fault> {
        match self.answers.try_recv() {
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(self.ended()),
            Ok(Ok(line)) => {
                let line = excerpt(&String::from_utf8_lossy(&line));
                return Err(Fault::Lasting(format!(
                    "wrote a line that nobody asked for: {line}"
                )));
            }
            Ok(Err(fault)) => return Err(fault),
        }
        if let Some(requests) = &self.requests {
            // A process that has ended is noticed by its answer.
            let _ = requests.send(line.to_vec());
        }
        let (timeout, name) = if self.has_answered {
            (program.timeout, "timeout_s")
        } else {
            (program.start_timeout.max(program.timeout), "start_timeout_s")
        };
        match self.answers.recv_timeout(timeout) {
            Ok(answer) => {
                self.has_answered = true;
                answer
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
            Err(RecvTimeoutError::Timeout) => Err(Fault::Passing(format!(
                "did not answer within `{name}`, {} seconds",
                timeout.as_secs_f64()
            ))),
        }
    }

    fn ended(&mut self) -> Fault {
        Fault::Passing(match self.wait() {
            Some(status) => format!("ended without an answer ({status})"),
            None => "closed its standard output".to_owned(),
        })
    }

    /// Waits a while for the end.
    fn wait(&mut self) -> Option<ExitStatus> {
        self.requests = None;
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if start.elapsed() < ENDING => thread::sleep(Duration::from_millis(5)),
                _ => return None,
            }
        }
    }

    /// Ends the process now, and gives the last lines of its standard error, as the rest of a sentence.
    pub(super) fn end(mut self) -> String {
        self.kill();
        // What is still in the pipe; a child of the process may hold it open.
        let _ = self.has_said_all.recv_timeout(Duration::from_millis(500));
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_empty() {
            return "; it wrote nothing to standard error".to_owned();
        }
        let lines: Vec<&str> = said.iter().map(String::as_str).collect();
        format!("; the last lines of its standard error:\n{}", lines.join("\n"))
    }

    fn kill(&mut self) {
        // Either fails only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    /// Lets the process end by itself, for its standard input has ended, and then not any more.
    fn drop(&mut self) {
        if self.wait().is_none() {
            self.kill();
        }
    }
}

/// Writes lines until there are no more, or nobody reads them.
fn write(mut stdin: ChildStdin, lines: &Receiver<Vec<u8>>) {
    for line in lines {
        if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

/// Reads lines until the process has closed its output, or nobody wants them.
fn read(stdout: ChildStdout, answers: &SyncSender<Result<Vec<u8>, Fault>>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let read = stdout.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
        let answer = match read {
            Ok(_) if line.ends_with(b"\n") => Ok(line),
            Ok(length) if length as u64 == LONGEST_LINE => Err(Fault::Lasting(format!(
                "wrote a line of more than {LONGEST_LINE} bytes: {}",
                excerpt(&String::from_utf8_lossy(&line))
            ))),
            // The end; what was begun is no answer.
            _ => return,
        };
        let is_last = answer.is_err();
        if answers.send(answer).is_err() || is_last {
            return;
        }
    }
}

/// Keeps the last lines of standard error.
fn keep(stderr: ChildStderr, said: &Mutex<VecDeque<String>>, said_all: &Sender<()>) {
    let mut stderr = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match stderr.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(length) if length > 0 => {}
            _ => break,
        }
        let line = String::from_utf8_lossy(&line);
        if line.trim().is_empty() {
            continue;
        }
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() == LAST_LINES {
            said.pop_front();
        }
        let shown = line
            .trim_end()
            .chars()
            .take(200)
            .map(|c| if c.is_control() { ' ' } else { c });
        said.push_back(shown.collect());
    }
    // Nobody waits for it unless the process is being ended.
    let _ = said_all.send(());
}
