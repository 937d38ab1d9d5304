//! What goes wrong beside the links, and how it ends.

use xagg_proto::Worker;

use super::{Checked, Cluster, Happening};
use crate::scenario::{Incident, Way, micros};

/// Microseconds between two claims of a forger.
const BETWEEN_CLAIMS: usize = 10_000;

impl Cluster<'_> {
    pub(super) fn begin(&mut self, incident: Incident) -> Checked {
        match incident {
            Incident::Pause { rank, lasting, .. } => {
                self.members[usize::from(rank)].paused = true;
                self.schedule(micros(lasting), Happening::End(incident));
            }
            Incident::Partition { rank, lasting, way, .. } => {
                self.cut(rank, way, true);
                self.schedule(micros(lasting), Happening::End(incident));
            }
            Incident::Claims { rank, lasting, .. } => {
                for after in (0..lasting).step_by(BETWEEN_CLAIMS) {
                    self.schedule(micros(after), Happening::Unreachable(rank.into()));
                }
            }
            Incident::CrashWorker { rank, restart, .. } => {
                let member = &mut self.members[usize::from(rank)];
                member.worker = None;
                member.ends.clear();
                if let Some(after) = restart {
                    self.starts_to_come += 1;
                    self.schedule(micros(after), Happening::Start(rank.into()));
                }
            }
            Incident::CrashAggregator { restart, unreachable, .. } => {
                self.aggregator = None;
                self.unreachable = unreachable;
                if let Some(after) = restart {
                    self.schedule(micros(after), Happening::End(incident));
                }
            }
        }
        Ok(())
    }

    pub(super) fn end(&mut self, incident: Incident) -> Checked {
        match incident {
            Incident::Pause { rank, .. } => {
                let rank = usize::from(rank);
                self.members[rank].paused = false;
                while let Some(frame) = self.members[rank].waiting.pop_front() {
                    self.deliver(frame)?;
                }
                self.drive(rank, Worker::handle_timeout)
            }
            Incident::Partition { rank, way, .. } => {
                self.cut(rank, way, false);
                Ok(())
            }
            Incident::CrashAggregator { .. } => {
                self.start_aggregator();
                Ok(())
            }
            Incident::CrashWorker { .. } | Incident::Claims { .. } => Ok(()),
        }
    }

    fn cut(&mut self, rank: u16, way: Way, cut: bool) {
        let member = &mut self.members[usize::from(rank)];
        if way != Way::Down {
            member.up.cut = cut;
        }
        if way != Way::Up {
            member.down.cut = cut;
        }
    }

    pub(super) fn tell_unreachable(&mut self, rank: usize) -> Checked {
        if self.members[rank].paused { Ok(()) } else { self.drive(rank, Worker::handle_unreachable) }
    }
}
