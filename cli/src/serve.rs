//! tmp
pub(crate) async fn run(_: crate::arguments::Serve) -> Result<(), crate::problem::Problem> {
    Ok(())
}
