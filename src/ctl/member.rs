//! `prefixd ctl member` and `prefixd ctl transfer-leader`: shows the members and has the leader change them. Any node may
//! be asked; it passes the order on. What a change refuses, and why, is the node's to say.

use super::{show, within};
use crate::cli::{print, table};
use crate::config::parse;
use clap::Subcommand;
use prefixd_proto::admin::admin_client::AdminClient;
use prefixd_proto::admin::{
    AddMemberRequest, ChangeResponse, ListMembersRequest, ListMembersResponse, MemberStatus, PromoteMemberRequest,
    RemoveMemberRequest, TransferLeaderRequest,
};
use serde_json::{Value, json};
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Member {
    /// Show the members: name, disk, address, part, how far behind, and when the leader last heard of each.
    List,
    /// Let a node in that runs with an empty disk: as a learner, which becomes a voter when it has caught up.
    Add {
        /// The name that it was started with.
        #[arg(value_parser = parse::member_name)]
        name: String,
        /// Its node port, as the members reach it.
        #[arg(value_name = "HOST:PORT", value_parser = parse::host_port)]
        node_addr: String,
    },
    /// Take a member out for good. Refused for the last voter, and where the rest would have no quorum.
    Remove {
        /// A name, or the id of a disk as `list` shows it.
        #[arg(value_parser = parse::member_name)]
        member: String,
        /// Exit with 0 also when nobody has that name or id, as after a first run: for scripts that may run twice.
        #[arg(long)]
        if_exists: bool,
    },
    /// Make a learner a voter now. Refused while it is too far behind.
    Promote {
        /// A name, or the id of a disk as `list` shows it.
        #[arg(value_parser = parse::member_name)]
        member: String,
    },
}

/// Asks, and shows the answer. A node is told how long it may wait for a leader.
pub(super) async fn run(
    mut node: AdminClient<Channel>,
    what: &Member,
    patience: Duration,
    as_json: bool,
) -> Result<bool, Status> {
    match what {
        Member::List => {
            let list = node.list_members(ListMembersRequest { forwarded: false }).await?.into_inner();
            print::line(&if as_json { list_json(&list) } else { list_text(&list) });
            Ok(true)
        }
        Member::Add { name, node_addr } => {
            let request = AddMemberRequest { name: name.clone(), node_addr: node_addr.clone(), forwarded: false };
            told(node.add_member(within(patience, request)).await, as_json)
        }
        Member::Remove { member, if_exists } => {
            let request = RemoveMemberRequest { member: member.clone(), forwarded: false };
            told(unless_unknown(node.remove_member(within(patience, request)).await, *if_exists), as_json)
        }
        Member::Promote { member } => {
            let request = PromoteMemberRequest { member: member.clone(), forwarded: false };
            told(node.promote_member(within(patience, request)).await, as_json)
        }
    }
}

/// Hands leadership over.
pub(super) async fn transfer(
    mut node: AdminClient<Channel>,
    to: Option<&str>,
    patience: Duration,
    as_json: bool,
) -> Result<bool, Status> {
    let request = TransferLeaderRequest { to: to.unwrap_or_default().to_owned(), forwarded: false };
    told(node.transfer_leader(within(patience, request)).await, as_json)
}

/// Turns "nobody has that name" into an answer that changed nothing, where that is as good.
fn unless_unknown(
    answer: Result<Response<ChangeResponse>, Status>,
    if_exists: bool,
) -> Result<Response<ChangeResponse>, Status> {
    match answer {
        Err(status) if if_exists && status.code() == Code::NotFound => {
            let message = format!("nothing to do: {}", status.message());
            Ok(Response::new(ChangeResponse { message, ..ChangeResponse::default() }))
        }
        other => other,
    }
}

fn told(answer: Result<Response<ChangeResponse>, Status>, as_json: bool) -> Result<bool, Status> {
    let answer = answer?.into_inner();
    print::line(&if as_json { change_json(&answer) } else { answer.message });
    Ok(true)
}

fn change_json(answer: &ChangeResponse) -> String {
    let members: Vec<Value> = answer.members.iter().map(show::member_json).collect();
    show::pretty(&json!({
        "changed": answer.changed, "message": answer.message, "leader": answer.leader, "members": members,
    }))
}

fn list_json(list: &ListMembersResponse) -> String {
    let members: Vec<Value> = list.members.iter().map(show::member_json).collect();
    show::pretty(&json!({
        "cluster_id": show::hex(&list.cluster_id), "feature_level": list.feature_level, "term": list.term,
        "leader": list.leader, "seen_by": list.seen_by, "from_leader": list.from_leader, "members": members,
    }))
}

fn list_text(list: &ListMembersResponse) -> String {
    let header = ["name", "id", "address", "role", "lag", "last heard", "ready", "reads", "release"].map(str::to_owned);
    let rows: Vec<[String; 9]> =
        std::iter::once(header).chain(list.members.iter().map(|member| row(list, member))).collect();
    let mut text = table::render(&rows);
    if !list.from_leader {
        text.push_str(&format!(
            "no leader was reached: this is what {} knows, lag and last heard apart\n",
            list.seen_by
        ));
    }
    text.truncate(text.trim_end().len());
    text
}

fn row(list: &ListMembersResponse, m: &MemberStatus) -> [String; 9] {
    let role = match (list.leader == Some(m.node_id), m.voter) {
        (true, _) => "leader",
        (false, true) => "voter",
        (false, false) => "learner",
    };
    let unknown = || "-".to_owned();
    let heard = match m.heard_ms {
        None if list.from_leader => "never".to_owned(),
        None => unknown(),
        Some(ms) if ms < 10_000 => format!("{ms} ms"),
        Some(ms) => format!("{} s", ms / 1_000),
    };
    [
        m.name.clone(),
        format!("{:016x}", m.node_id),
        m.node_addr.clone(),
        role.to_owned(),
        m.lag.map_or_else(unknown, |lag| lag.to_string()),
        heard,
        match m.ready {
            Some(true) => "yes".into(),
            Some(false) => "no".into(),
            None => "no answer".into(),
        },
        m.feature_max.map_or_else(unknown, |max| max.to_string()),
        if m.release.is_empty() { unknown() } else { m.release.clone() },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ListMembersResponse {
        let member = |name: &str, node_id, voter, heard_ms| MemberStatus {
            node_id,
            name: name.into(),
            node_addr: format!("{name}:9091"),
            voter,
            lag: Some(node_id),
            heard_ms,
            ready: heard_ms.map(|_| true),
            release: heard_ms.map_or_else(String::new, |_| "0.1.0".into()),
            feature_max: heard_ms.map(|_| 1),
        };
        ListMembersResponse {
            members: vec![
                member("n0", 7, true, Some(0)),
                member("n1", 8, true, None),
                member("n2", 9, false, Some(12_345)),
            ],
            leader: Some(7),
            cluster_id: vec![0xab; 16],
            seen_by: "n0".into(),
            from_leader: true,
            feature_level: 1,
            ..Default::default()
        }
    }

    #[test]
    fn people_see_who_is_what_and_how_far() {
        let text = list_text(&sample());
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect()).collect();
        assert_eq!(rows[0], ["name", "id", "address", "role", "lag", "last heard", "ready", "reads", "release"]);
        assert_eq!(rows[1], ["n0", "0000000000000007", "n0:9091", "leader", "7", "0 ms", "yes", "1", "0.1.0"]);
        assert_eq!(rows[2], ["n1", "0000000000000008", "n1:9091", "voter", "8", "never", "no answer", "-", "-"]);
        assert_eq!(rows[3][3..6], ["learner", "9", "12 s"]);
        let alone = ListMembersResponse { from_leader: false, ..sample() };
        assert!(list_text(&alone).ends_with("this is what n0 knows, lag and last heard apart"));
    }

    #[test]
    fn programs_see_every_field() {
        let value: Value = serde_json::from_str(&list_json(&sample())).unwrap();
        assert_eq!((value["leader"].as_u64(), value["from_leader"].as_bool()), (Some(7), Some(true)));
        assert_eq!(value["members"][2]["heard_ms"], 12_345);
        assert!(value["members"][1]["ready"].is_null() && value["members"][1]["feature_max"].is_null());
        let unknown = || Err(Status::not_found("\"n9\" is no member"));
        let as_good = unless_unknown(unknown(), true).unwrap().into_inner();
        assert_eq!((as_good.changed, &*as_good.message), (false, "nothing to do: \"n9\" is no member"));
        assert_eq!(unless_unknown(unknown(), false).unwrap_err().code(), Code::NotFound);
        let refused = unless_unknown(Err(Status::failed_precondition("the last voter")), true).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let change = ChangeResponse { message: "done".into(), changed: true, ..Default::default() };
        let value: Value = serde_json::from_str(&change_json(&change)).unwrap();
        assert_eq!((&value["changed"], &value["message"]), (&json!(true), &json!("done")));
    }
}
