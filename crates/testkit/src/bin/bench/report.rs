//! What a benchmark found: medians and spread of ours and of the yardstick, and their ratio.

use serde_json::{Value, json};

/// How a report is printed; the JSON form is the last line of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// The samples of one benchmark, one for each repeat.
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    /// What a sample counts, such as `jobs/s`.
    pub(crate) unit: &'static str,
    pub(crate) ours: Vec<f64>,
    pub(crate) yardstick: Vec<f64>,
    /// What else was seen.
    pub(crate) details: Value,
}

impl Report {
    pub(crate) fn print(&self, format: Format) {
        let (ours, yardstick) = (median(&self.ours), median(&self.yardstick));
        let ratio = ours / yardstick;
        if format == Format::Text {
            println!("{} in {}", self.bench, self.unit);
            println!("  ours      {ours:12.2}   {}", spread(&self.ours));
            println!("  yardstick {yardstick:12.2}   {}", spread(&self.yardstick));
            println!("  ratio     {ratio:12.3}");
            println!("{}", serde_json::to_string_pretty(&self.details).unwrap());
            return;
        }
        let line = json!({
            "bench": self.bench, "ours": ours, "yardstick": yardstick, "unit": self.unit, "ratio": ratio,
            "details": {"ours": self.ours, "yardstick": self.yardstick, "more": self.details},
        });
        println!("{line}");
    }
}

/// Returns the median; the mean of the middle two of an even number.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// Returns the sample below which `share` of all samples lie (nearest rank).
pub(crate) fn quantile(samples: &[f64], share: f64) -> f64 {
    let sorted = sorted(samples);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank among far fewer than 2^52 samples"
    )]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    assert!(!samples.is_empty(), "nothing was measured");
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn spread(samples: &[f64]) -> String {
    let sorted = sorted(samples);
    format!("{:.2} to {:.2} over {} repeats", sorted[0], sorted[sorted.len() - 1], sorted.len())
}
