//! What the user sees while a training runs.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::events::{Epoch, Event, Step};

/// A bar for the steps, and a line for each epoch.
pub struct Progress {
    bar: ProgressBar,
    system: &'static str,
}

impl Progress {
    /// Before the first event.
    pub fn begin(system: &'static str) -> Self {
        let style =
            ProgressStyle::with_template("{prefix:>6} [{elapsed_precise}] {wide_bar} {pos}/{len} {msg}");
        let bar = ProgressBar::new(0).with_style(style.expect("the template is valid")).with_prefix(system);
        bar.set_message("starting");
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, system }
    }

    /// Shows an event of rank 0.
    pub fn show(&self, event: &Event) {
        match event {
            Event::Start(start) => self.bar.set_length(start.steps),
            Event::Step(step) => self.show_step(*step),
            Event::Epoch(epoch) => self.show_epoch(*epoch),
            Event::End(_) => self.bar.set_message("done"),
        }
    }

    fn show_step(&self, step: Step) {
        self.bar.set_position(step.step);
        self.bar.set_message(format!(
            "loss {:.3}, communication {:.1} ms",
            step.loss,
            step.comm_seconds * 1e3
        ));
    }

    fn show_epoch(&self, epoch: Epoch) {
        let Epoch { epoch, loss, test_accuracy } = epoch;
        let line = format!(
            "{:>6} epoch {epoch}: loss {loss:.4}, test accuracy {:.2} %",
            self.system,
            test_accuracy * 100.0
        );
        // Also where there is no terminal, and so no bar.
        self.bar.suspend(|| println!("{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
