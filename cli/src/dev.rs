//! tmp
pub(crate) async fn run(_: crate::arguments::Dev) -> Result<(), crate::problem::Problem> {
    Ok(())
}
