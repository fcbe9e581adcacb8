//! The declarations. The number after `<=` is how many series one program exports at most.

use crate::{Declaration, Kind, Label, Metric, Page};

macro_rules! labels {
    ($($label:ident: $name:literal, $says:literal;)*) => {
        $(#[doc = $says] pub static $label: Label = Label { name: $name, says: $says };)*
        /// All labels.
        pub static LABELS: &[&Label] = &[$(&$label),*];
    };
}

labels! {
    VERSION: "version", "release of the program";
    NODE: "node", "name of the agent's node: one for each agent";
    WIRE: "wire", "version of the wire format";
    REASON: "reason", "why, a word of the documentation: those that there are";
    CALL: "call", "call of the control API";
    JOB_NAMESPACE: "job_namespace", "namespace of a TransferJob";
    JOB_NAME: "job_name", "name of a TransferJob: those under way, then the newest, 64 for each agent";
    STATE: "state", "state of an attempt at a node: one at a time";
    PEER: "peer", "address of another node: those with a connection of a job, 128 for each agent";
    LINK: "link", "udp or tcp";
    OF_PATHS: "of_paths", "min, median or max";
    PATH: "path", "number of a path, 256 for each peer";
    INTERFACE: "interface", "network interface of a NIC, 16 for each agent";
    ADDRESS: "address", "IP address of a NIC";
    HERE: "here", "IP address of a NIC of this node";
    THERE: "there", "IP address of a NIC of a peer";
    WHAT: "what", "Packet, Offer, Call or Connection";
    ROOT: "root", "name of a root: those that jobs write to, 16 for each agent";
    TO_NODE: "to_node", "name of the node at the other end; `*` is every node";
    DEVICE: "device", "name of a virtual device, which is one of its node";
    POD_NAMESPACE: "pod_namespace", "namespace of the pod that has a device";
    POD_NAME: "pod_name", "name of the pod that has a device: 1,000 devices for each agent";
}

macro_rules! metrics {
    ($($(#[$note:meta])* $id:ident: $page:ident $kind:ident $name:literal [$($label:ident),*] <= $series:literal, $help:literal;)*) => {
        $($(#[$note])* #[doc = $help] pub static $id: Metric<{ <[&str]>::len(&[$(stringify!($label)),*]) }> = Metric {
            name: $name,
            kind: Kind::$kind,
            labels: [$(&$label),*],
            series: $series,
            page: Page::$page,
            help: $help,
        };)*
        /// All declarations, page by page.
        pub static ALL: &[Declaration] = &[$($id.declaration()),*];
    };
}

metrics! {
    BUILD: Agent Info "weft_build_info" [VERSION, NODE, WIRE] <= 1, "The agent that answers";
    TLS_REFUSED: Agent Counter "weft_tls_refused_total" [REASON] <= 4,
        "Connections to the control port that were refused before their first call: Handshake (no certificate, one of another authority, or no TLS), Timeout, TooMany";
    REFUSED: Agent Counter "weft_refused_total" [REASON] <= 150,
        "Calls that were refused, by reason: a wrong certificate or ticket among them";

    JOB_ATTEMPT: Agent Gauge "weft_job_attempt" [JOB_NAMESPACE, JOB_NAME] <= 64,
        "The latest attempt of a job that this node knows";
    JOB_BYTES: Agent Counter "weft_job_bytes_total" [JOB_NAMESPACE, JOB_NAME] <= 64,
        "Bytes of a job that are on this node and checked; at its source, read and hashed";
    JOB_RESUMED_BYTES: Agent Counter "weft_job_resumed_bytes_total" [JOB_NAMESPACE, JOB_NAME] <= 64,
        "Bytes of a job that were on this node before and were not sent again";
    JOB_SIZE_BYTES: Agent Gauge "weft_job_size_bytes" [JOB_NAMESPACE, JOB_NAME] <= 64,
        "Bytes of all files of a job";
    JOB_STATE: Agent Gauge "weft_job_state" [JOB_NAMESPACE, JOB_NAME, STATE] <= 64,
        "1, with the state of a job's latest attempt at this node";
    JOB_FAILED: Agent Gauge "weft_job_failed" [JOB_NAMESPACE, JOB_NAME, REASON] <= 64,
        "1 for a job whose latest attempt has ended at this node without a copy, by reason; Cancelled and Superseded are no faults";

    CHUNKS_SENT: Agent Counter "weft_chunks_sent_total" [] <= 1, "Chunks of jobs sent, resends included; not those of virtual devices";
    CHUNKS_RESENT: Agent Counter "weft_chunks_resent_total" [] <= 1, "Chunks of jobs of which something was sent again";
    PACKETS_SENT: Agent Counter "weft_packets_sent_total" [] <= 1, "Packets sent, again or not";
    ACKNOWLEDGED_BYTES: Agent Counter "weft_acknowledged_bytes_total" [] <= 1, "Payload bytes of jobs that peers have acknowledged; those of virtual devices are weft_device_sent_bytes_total";
    PLACED_BYTES: Agent Counter "weft_placed_bytes_total" [] <= 1, "Payload bytes of jobs placed in receive regions; those of virtual devices are weft_device_received_bytes_total";
    TIMEOUTS: Agent Counter "weft_timeouts_total" [] <= 1, "Retransmission timeouts";
    SPURIOUS_RESENDS: Agent Counter "weft_spurious_resends_total" [] <= 1, "Resends that were not needed";
    RESETS_SENT: Agent Counter "weft_resets_sent_total" [] <= 1, "Resets sent for packets of no connection";
    DROPPED_PACKETS: Agent Counter "weft_dropped_packets_total" [REASON] <= 40, "Arriving packets that were not used, by reason";
    CONNECTIONS: Agent Gauge "weft_connections" [] <= 1, "Connections in the engine";
    ARMED_BYTES: Agent Gauge "weft_armed_bytes" [] <= 1, "Receive regions that are ready";
    BUFFER_BYTES: Agent Gauge "weft_buffer_bytes" [] <= 1, "Transfer buffers in use by all jobs";
    CERTIFICATE_EXPIRES: Agent Gauge "weft_certificate_expires_timestamp_seconds" [] <= 1,
        "Unix time at which the agent's certificate ends; it is renewed in time where the operator answers";
    ROOT_FREE_BYTES: Agent Gauge "weft_root_free_bytes" [ROOT] <= 16, "Free bytes of a root's file system";
    ROOT_MIN_FREE_BYTES: Agent Gauge "weft_root_min_free_bytes" [ROOT] <= 16,
        "Bytes of a root's file system that transfers leave free (minFree)";

    PEER_CONNECTIONS: Agent Gauge "weft_peer_connections" [PEER, LINK] <= 128,
        "Connections with a peer, by link, those that measure it included";
    PEER_RTT: Agent Gauge "weft_peer_rtt_seconds" [PEER, OF_PATHS] <= 384,
        "Smoothed round-trip time of the paths to a peer: the smallest, the median and the largest";
    PEER_PATHS_DOWN: Agent Gauge "weft_peer_paths_down" [PEER] <= 128,
        "Paths of jobs to a peer that are not given data; not those between two NICs that have never reached each other, where others have";
    PEER_ACKNOWLEDGED_BYTES: Agent Counter "weft_peer_acknowledged_bytes_total" [PEER] <= 128,
        "Payload bytes that a peer has acknowledged";
    PEER_CHUNKS_SENT: Agent Counter "weft_peer_chunks_sent_total" [PEER] <= 128, "Chunks sent to a peer, resends included";
    PEER_CHUNKS_LOST: Agent Counter "weft_peer_chunks_lost_total" [PEER] <= 128, "Chunks lost on the way to a peer";
    PEER_CE_PACKETS: Agent Counter "weft_peer_ce_packets_total" [PEER] <= 128,
        "Packets to a peer that were marked Congestion Experienced";
    PEER_TIMEOUTS: Agent Counter "weft_peer_timeouts_total" [PEER] <= 128, "Timeouts on the paths to a peer, probes included";
    LINK_FALLBACK: Agent Gauge "weft_link_fallback" [TO_NODE, LINK] <= 32,
        "1 for the link that data takes to a node because another one did not pass at the last measurement of the last hour";
    NIC_UP: Agent Gauge "weft_nic_up" [INTERFACE, ADDRESS] <= 16,
        "1 for a NIC of the data path that is up and has a carrier; 0 for another one";

    DEVICES: Agent Gauge "weft_devices" [] <= 1, "Virtual devices that the pods of this node can have";
    DEVICES_IN_USE: Agent Gauge "weft_devices_in_use" [] <= 1, "Virtual devices that pods have";
    DEVICES_UNHEALTHY: Agent Gauge "weft_devices_unhealthy" [REASON] <= 16, "Virtual devices that no pod can use, by reason";
    DEVICES_REFUSED: Agent Counter "weft_devices_refused_total" [WHAT] <= 4,
        "Attempts at this node's virtual devices that were refused, by what they were";
    DEVICE_SENT_BYTES: Agent Counter "weft_device_sent_bytes_total" [POD_NAMESPACE, POD_NAME, DEVICE] <= 1000,
        "Payload bytes of a pod's device that peers have acknowledged";
    DEVICE_RECEIVED_BYTES: Agent Counter "weft_device_received_bytes_total" [POD_NAMESPACE, POD_NAME, DEVICE] <= 1000,
        "Payload bytes that have come to a pod's device";
    DEVICE_REFUSED: Agent Counter "weft_device_refused_total" [POD_NAMESPACE, POD_NAME, DEVICE] <= 1000,
        "Packets, offers and calls at a pod's device that were refused";
    DEVICE_OPERATIONS: Agent Counter "weft_device_operations_total" [POD_NAMESPACE, POD_NAME, DEVICE] <= 1000,
        "Work requests of send queues that a pod's device has begun";
    DEVICE_SHARE: Agent Gauge "weft_device_share" [POD_NAMESPACE, POD_NAME, DEVICE] <= 1000,
        "Weight of a pod's device beside others of its node, 100 by default";
    DEVICE_STALLED: Agent Gauge "weft_device_stalled" [POD_NAMESPACE, POD_NAME, DEVICE] <= 1000,
        "1 for a device that stands still, as its program's memory holds up a copy";
    OFFERS_DROPPED: Agent Counter "weft_offers_dropped_total" [] <= 1,
        "Offers of this node's queue pairs that were dropped, as too many waited for another node's agent";

    PATH_CHUNKS_SENT: Paths Counter "weft_path_chunks_sent_total" [PEER, PATH, LINK] <= 16384,
        "Chunks sent on a path, resends included";
    PATH_CHUNKS_LOST: Paths Counter "weft_path_chunks_lost_total" [PEER, PATH, LINK] <= 16384, "Chunks lost on a path";
    PATH_CE_PACKETS: Paths Counter "weft_path_ce_packets_total" [PEER, PATH, LINK] <= 16384,
        "Packets marked Congestion Experienced";
    PATH_TIMEOUTS: Paths Counter "weft_path_timeouts_total" [PEER, PATH, LINK] <= 16384,
        "Timeouts on a path, probes included";
    PATH_LIVE: Paths Gauge "weft_path_live" [PEER, PATH, LINK] <= 16384, "1 for a path that is given data";
    PATH_RTT: Paths Gauge "weft_path_rtt_seconds" [PEER, PATH, LINK] <= 16384,
        "Smoothed round-trip time of a path, once it is measured";
    NIC_PAIR_LIVE_PATHS: Paths Gauge "weft_nic_pair_live_paths" [HERE, THERE] <= 16384,
        "Paths that are given data between a NIC of this node and one of a peer; 0 where the two do not reach each other";

    OPERATOR_BUILD: Operator Info "weft_operator_build_info" [VERSION] <= 1, "The operator that answers";
    OPERATOR_LEADER_EPOCH: Operator Gauge "weft_operator_leader_epoch" [] <= 1,
        "The epoch of this process's commands; 0 while another one leads";
    OPERATOR_ENROLLED: Operator Counter "weft_operator_enrolled_total" [] <= 1,
        "Certificates that agents were given, renewals included";
    OPERATOR_AGENTS: Operator Gauge "weft_operator_agents" [] <= 1, "Agents whose stream of reports is open";
    OPERATOR_NODES_NOT_READY: Operator Gauge "weft_operator_nodes_not_ready" [] <= 1,
        "Nodes of fabrics that have not been ready for ten minutes, whether or not they have an agent; 0 while another process leads";
    OPERATOR_REPORTS: Operator Counter "weft_operator_reports_total" [] <= 1, "Reports of agents";
    OPERATOR_REFUSED: Operator Counter "weft_operator_refused_total" [CALL, REASON] <= 200,
        "Calls of agents that were refused, by call and reason";
    OPERATOR_TLS_REFUSED: Operator Counter "weft_operator_tls_refused_total" [REASON] <= 4,
        "Connections to the control port that were refused before their first call: Handshake (no certificate, one of another authority, or no TLS), Timeout, TooMany";
    OPERATOR_LIVE_TLS_REFUSED: Operator Counter "weft_operator_live_tls_refused_total" [REASON] <= 4,
        "Connections to the aggregated API that were refused before their first call: Handshake, Timeout, TooMany, OtherName (not the API server's)";
    OPERATOR_WRITES: Operator Counter "weft_operator_writes_total" [] <= 1,
        "Requests to change something that were sent to the API server, Events and refused ones included";
    OPERATOR_WRITES_DROPPED: Operator Counter "weft_operator_writes_dropped_total" [] <= 1,
        "Writes of progress and model labels that newer ones replaced before they were sent, and Events without room";
    OPERATOR_WRITES_FAILED: Operator Counter "weft_operator_writes_failed_total" [] <= 1,
        "Requests that the API server refused or did not answer, without conflicts and objects that are gone; they are made again";
    OPERATOR_WRITES_WAITING: Operator Gauge "weft_operator_writes_waiting" [] <= 1,
        "Requests to change something that wait until they may be sent, Events included";
    OPERATOR_STEP_SECONDS: Operator Histogram "weft_operator_step_seconds" [] <= 20,
        "Seconds from the first event until every controller has reconciled and submitted its requests";
}
