//! A list of things to do, each with a heading and its time; all of them run, and the failures are told at the end.

use std::time::Instant;

use anyhow::{Result, bail};

/// What has been done so far.
#[derive(Default)]
pub struct Steps {
    done: usize,
    failed: Vec<String>,
}

impl Steps {
    /// Does one thing, whether or not earlier ones failed.
    pub fn run(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        println!("\n=== {name}");
        let began = Instant::now();
        let result = work();
        let seconds = began.elapsed().as_secs_f64();
        self.done += 1;
        match result {
            Ok(()) => println!("--- {name}: passed in {seconds:.1} s"),
            Err(error) => {
                println!("--- {name}: FAILED after {seconds:.1} s: {error:#}");
                self.failed.push(name.to_owned());
            }
        }
    }

    /// Says how it went.
    ///
    /// # Errors
    /// Names the steps that failed.
    pub fn finish(self) -> Result<()> {
        if !self.failed.is_empty() {
            bail!("{} of {} steps failed: {}", self.failed.len(), self.done, self.failed.join(", "));
        }
        println!("\nall {} steps passed", self.done);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_at_the_end_and_does_not_keep_the_rest_from_running() {
        let mut steps = Steps::default();
        let mut ran = false;
        steps.run("breaks", || bail!("as it should"));
        steps.run("runs", || {
            ran = true;
            Ok(())
        });
        let message = steps.finish().expect_err("one failed").to_string();
        assert!(ran);
        assert_eq!(message, "1 of 2 steps failed: breaks");
    }
}
