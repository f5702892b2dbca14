//! A full-screen view: rewards as curves, progress, the last messages. Built with the feature `tui`.

use super::{evaluation, numbers, phase_name};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::terminal;
use flow_report::{Interval, Stopwatch, human_duration};
use flow_trainer::observer::{IterationSummary, Observer, Phase};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph};
use std::collections::VecDeque;
use std::io::{self, Stderr};
use std::time::{Duration, Instant};

/// Messages kept on screen and printed again at the end.
const MESSAGES: usize = 100;
/// Time between two pictures.
const REDRAW: Duration = Duration::from_millis(100);
const COLOURS: [Color; 5] = [
    Color::Cyan,
    Color::Yellow,
    Color::Magenta,
    Color::Green,
    Color::Blue,
];

/// Points of a curve: iteration and value.
type Curve = Vec<(f64, f64)>;

/// The view; leaves the terminal as it was when it is dropped.
pub struct Tui {
    screen: Terminal<CrosstermBackend<Stderr>>,
    interrupt: Interrupt,
    watch: Stopwatch,
    drawn: Option<Instant>,
    seen: u64,
    last: IterationSummary,
    phase: (Phase, usize, usize),
    rollouts: Curve,
    held_out: Vec<(String, Curve)>,
    messages: VecDeque<String>,
}

impl Tui {
    /// Takes over the terminal of standard error.
    pub fn open(iterations: u64, interrupt: Interrupt) -> Result<Self, Failure> {
        if !terminal::stderr_is_terminal() {
            return Err(Failure::Input(
                "`--tui` needs a terminal on standard error; leave it out".into(),
            ));
        }
        let open = || {
            enable_raw_mode()?;
            execute!(io::stderr(), EnterAlternateScreen)?;
            Terminal::new(CrosstermBackend::new(io::stderr()))
        };
        let screen = open().map_err(|error: io::Error| {
            leave();
            Failure::Input(format!("`--tui` cannot use this terminal: {error}"))
        })?;
        Ok(Self {
            screen,
            interrupt,
            watch: Stopwatch::start(),
            drawn: None,
            seen: 0,
            last: IterationSummary {
                total: iterations,
                ..IterationSummary::default()
            },
            phase: (Phase::Rollout, 0, 0),
            rollouts: Vec::new(),
            held_out: Vec::new(),
            messages: VecDeque::new(),
        })
    }

    fn say(&mut self, text: String) {
        if self.messages.len() == MESSAGES {
            self.messages.pop_front();
        }
        self.messages.push_back(text);
    }

    /// In raw mode the terminal sends Ctrl-C as a key.
    fn keys(&mut self) {
        while matches!(event::poll(Duration::ZERO), Ok(true)) {
            let Ok(Event::Key(KeyEvent { code, modifiers, .. })) = event::read() else {
                continue;
            };
            let control_c = code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL);
            if control_c && self.interrupt.ask() {
                leave();
                terminal::note("stopped at once; the run resumes from its last checkpoint");
                std::process::exit(130);
            }
            if control_c {
                self.say("finishing this iteration, then saving; press Ctrl-C again to stop at once".into());
            }
        }
    }

    fn draw(&mut self, at_once: bool) {
        self.keys();
        if !at_once && self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        let (total, done) = (self.last.total, self.last.done);
        let left_s = self.watch.wall_s() / self.seen.max(1) as f64 * total.saturating_sub(done) as f64;
        let status = format!(
            " {}   {:.1} images/s   {} left ",
            numbers(&self.last, false),
            self.last.images as f64 / self.last.wall_s.max(1e-9),
            if self.seen == 0 {
                "?".into()
            } else {
                human_duration(left_s)
            }
        );
        let (phase, units, position) = self.phase;
        let curves = std::iter::once(("rollouts", &self.rollouts))
            .chain(self.held_out.iter().map(|(name, curve)| (name.as_str(), curve)));
        let curves: Vec<(&str, &Curve)> = curves.collect();
        let (low, high) = bounds(&curves);
        let messages = &self.messages;
        let picture = self.screen.draw(|frame| {
            let rows = [
                Constraint::Min(8),
                Constraint::Length(3),
                Constraint::Length(3),
                Constraint::Length(7),
            ];
            let [top, run, below, bottom] = Layout::vertical(rows).areas(frame.area());
            let datasets = curves
                .iter()
                .zip(COLOURS.iter().cycle())
                .map(|((name, curve), colour)| {
                    Dataset::default()
                        .name(*name)
                        .marker(Marker::Braille)
                        .graph_type(GraphType::Line)
                        .style(Style::new().fg(*colour))
                        .data(curve)
                });
            let chart = Chart::new(datasets.collect())
                .block(Block::bordered().title(" reward "))
                .x_axis(
                    Axis::default()
                        .bounds([0.0, total as f64])
                        .labels(["0".to_owned(), total.to_string()]),
                )
                .y_axis(
                    Axis::default()
                        .bounds([low, high])
                        .labels([format!("{low:.3}"), format!("{high:.3}")]),
                );
            frame.render_widget(chart, top);
            frame.render_widget(gauge(status, done as usize, total as usize), run);
            frame.render_widget(gauge(format!(" {} ", phase_name(phase)), position, units), below);
            let skip = messages
                .len()
                .saturating_sub(usize::from(bottom.height.saturating_sub(2)));
            let lines: Vec<Line<'_>> = messages
                .iter()
                .skip(skip)
                .map(|text| Line::raw(text.as_str()))
                .collect();
            frame.render_widget(
                Paragraph::new(lines).block(Block::bordered().title(" messages ")),
                bottom,
            );
        });
        // That a picture could not be drawn is no reason to stop a run.
        drop(picture);
    }
}

fn gauge(title: String, position: usize, units: usize) -> Gauge<'static> {
    let ratio = if units == 0 {
        0.0
    } else {
        (position as f64 / units as f64).clamp(0.0, 1.0)
    };
    Gauge::default()
        .block(Block::bordered().title(title))
        .gauge_style(Style::new().fg(Color::Cyan))
        .ratio(ratio)
        .label(format!("{position}/{units}"))
}

/// The range of all values, never empty.
fn bounds(curves: &[(&str, &Curve)]) -> (f64, f64) {
    let values = || {
        curves
            .iter()
            .flat_map(|(_, curve)| curve.iter().map(|(_, value)| *value))
    };
    let (low, high) = (
        values().fold(f64::INFINITY, f64::min),
        values().fold(f64::NEG_INFINITY, f64::max),
    );
    if !(low.is_finite() && high.is_finite()) {
        return (0.0, 1.0);
    }
    let margin = ((high - low) * 0.05).max(1e-3);
    (low - margin, high + margin)
}

/// Gives the terminal back. What fails here cannot be mended.
fn leave() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stderr(), LeaveAlternateScreen);
}

impl Observer for Tui {
    fn phase(&mut self, phase: Phase, units: usize) {
        self.phase = (phase, units, 0);
        self.draw(false);
    }

    fn advance(&mut self, units: usize) {
        self.phase.2 += units;
        self.draw(false);
    }

    fn iteration(&mut self, summary: &IterationSummary) {
        self.seen += 1;
        self.last = summary.clone();
        if !summary.reward.is_nan() {
            self.rollouts.push((summary.done as f64, summary.reward));
        }
        self.draw(true);
    }

    fn evaluation(&mut self, step: u64, rewards: &[(String, Interval)]) {
        for (name, interval) in rewards {
            let title = format!("held-out: {name}");
            match self.held_out.iter_mut().find(|(known, _)| *known == title) {
                Some((_, curve)) => curve.push((step as f64, interval.mean)),
                None => self.held_out.push((title, vec![(step as f64, interval.mean)])),
            }
        }
        self.say(evaluation(step, rewards));
        self.draw(true);
    }

    fn notice(&mut self, text: &str) {
        self.say(format!("note: {text}"));
        self.draw(true);
    }

    fn interrupted(&self) -> bool {
        self.interrupt.requested()
    }
}

impl Drop for Tui {
    fn drop(&mut self) {
        leave();
        // The view is gone with the alternate screen; what it said stays readable.
        self.messages.iter().for_each(|text| terminal::note(text));
    }
}
