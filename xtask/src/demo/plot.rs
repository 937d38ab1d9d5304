//! The plot: loss and communication time of both trainings, step by step.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::events::Step;
use super::report::Report;

const SIZE: (u32, u32) = (1000, 800);
/// Of Debian's package fonts-dejavu-core.
const FONT: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";
const XAGG: RGBColor = RGBColor(0, 90, 181);
const GLOO: RGBColor = RGBColor(220, 50, 32);
/// Above this part of all steps a few hiccups would flatten the rest.
const SHOWN: f64 = 0.99;

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

/// What is drawn of a step.
struct Quantity {
    title: &'static str,
    unit: &'static str,
    of: fn(&Step) -> f64,
}

const QUANTITIES: [Quantity; 2] = [
    Quantity { title: "Training loss of rank 0", unit: "loss", of: |step| step.loss },
    Quantity {
        title: "Communication time of rank 0 per step",
        unit: "milliseconds",
        of: |step| step.comm_seconds * 1e3,
    },
];

/// Draws a PNG.
///
/// # Errors
/// When the font is missing or the file cannot be written.
pub fn draw(report: &Report, path: &Path) -> Result<()> {
    let font =
        fs::read(FONT).with_context(|| format!("cannot read the font {FONT} (package fonts-dejavu-core)"))?;
    // The library keeps fonts for the life of the process.
    register_font("sans-serif", FontStyle::Normal, Box::leak(font.into_boxed_slice()))
        .map_err(|_| anyhow!("{FONT} is not a font"))?;
    let whole = BitMapBackend::new(path, SIZE).into_drawing_area();
    whole.fill(&WHITE)?;
    for (area, quantity) in whole.split_evenly((QUANTITIES.len(), 1)).iter().zip(&QUANTITIES) {
        draw_quantity(area, report, quantity).with_context(|| format!("cannot draw {}", quantity.title))?;
    }
    whole.present().with_context(|| format!("cannot write {}", path.display()))
}

fn draw_quantity(area: &Area<'_>, report: &Report, quantity: &Quantity) -> Result<()> {
    let sides = [("xagg", XAGG, &report.xagg.steps), ("gloo", GLOO, &report.gloo.steps)];
    let values = sides.iter().flat_map(|(_, _, steps)| steps.iter().map(quantity.of)).collect();
    let last = sides.iter().flat_map(|(_, _, steps)| steps.iter().map(|step| step.step)).max().unwrap_or(1);
    let mut chart = ChartBuilder::on(area)
        .caption(quantity.title, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(1..last.max(2), 0.0..top(values))?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc(quantity.unit)
        .label_style(("sans-serif", 14))
        .max_light_lines(1)
        .draw()?;
    for (name, colour, steps) in sides {
        let points = steps.iter().map(|step| (step.step, (quantity.of)(step)));
        chart
            .draw_series(LineSeries::new(points, colour))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font(("sans-serif", 16))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// The top of the axis: a little above nearly all values.
fn top(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * SHOWN) as usize;
    let value = values.get(index).or(values.last()).copied().unwrap_or(1.0);
    if value > 0.0 { value * 1.1 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::report::tests::report_with_steps;

    #[test]
    fn a_plot_is_a_png_with_both_curves() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("plot.png");
        let steps = |factor: f64| {
            let at = |step: u64| Step { step, loss: factor / step as f64, comm_seconds: factor * 0.01 };
            (1..200).map(at).collect()
        };
        draw(&report_with_steps(steps(2.0), steps(1.0)), &path).expect("draws");
        assert!(fs::read(&path).expect("is there").starts_with(b"\x89PNG"));
    }

    #[test]
    fn a_rare_hiccup_does_not_flatten_the_plot() {
        let mut values = vec![1.0; 999];
        values.push(1000.0);
        assert!((top(values) - 1.1).abs() < 1e-9);
        assert!((top(vec![]) - 1.1).abs() < 1e-9);
        assert!((top(vec![0.0]) - 1.0).abs() < 1e-9);
    }
}
