//! The table of what scenarios cost is the one that is kept. `XAGG_WRITE_TABLE=1 cargo test -p xagg-sim --test table` writes it
//! anew: a diff in it is a change of behaviour.

use std::path::Path;

#[test]
fn the_scenarios_cost_what_they_did() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/table.md");
    let table = xagg_sim::table::table().unwrap_or_else(|violation| panic!("{violation}"));
    if std::env::var_os("XAGG_WRITE_TABLE").is_some() {
        std::fs::write(&path, &table).expect("writes");
    }
    let kept = std::fs::read_to_string(&path).expect("reads");
    assert!(kept == table, "differs from {}:\n{table}", path.display());
}
