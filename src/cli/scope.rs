//! Whose cache a subcommand speaks about: the parts of the index key that are not the hash.

/// Flags that fill in what JSON from standard input leaves out.
#[derive(Debug, Clone, clap::Args)]
pub struct Scope {
    /// The tenant [default: default]
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// The model [default: default]
    #[arg(long, value_name = "ID")]
    model: Option<String>,
    /// The hash domain; hashes match only within it [default: vllm]
    #[arg(long, value_name = "NAME")]
    scheme: Option<String>,
    /// The adapter (LoRA) partition [default: the base model's]
    #[arg(long, value_name = "ID")]
    adapter: Option<String>,
}

impl Scope {
    /// Fills in the tenant: what the message says, else the flag, else the default.
    pub fn tenant_into(&self, field: &mut String) {
        fill(field, self.tenant.as_deref(), "default");
    }

    /// Fills in the model likewise.
    pub fn model_into(&self, field: &mut String) {
        fill(field, self.model.as_deref(), "default");
    }

    /// Fills in the hash scheme likewise.
    pub fn scheme_into(&self, field: &mut String) {
        fill(field, self.scheme.as_deref(), "vllm");
    }

    /// Fills in the adapter likewise; there is no default.
    pub fn adapter_into(&self, field: &mut String) {
        fill(field, self.adapter.as_deref(), "");
    }
}

fn fill(field: &mut String, flag: Option<&str>, default: &str) {
    if field.is_empty() {
        flag.unwrap_or(default).clone_into(field);
    }
}

#[cfg(test)]
mod tests {
    use super::fill;

    #[test]
    fn the_message_comes_before_the_flag_before_the_default() {
        for (said, flag, expected) in [("a", Some("b"), "a"), ("", Some("b"), "b"), ("", None, "c"), ("", Some(""), "")]
        {
            let mut field = said.to_owned();
            fill(&mut field, flag, "c");
            assert_eq!(field, expected);
        }
    }
}
