use super::*;

fn memory() -> Arc<Region> {
    Arc::new(Region::memfd("ring", MEMORY_BYTES as u64).unwrap())
}

/// Bytes of the `number`-th packet, of a length that differs from one to the next.
fn packet(number: u64, longest: usize) -> Vec<u8> {
    let lengths = [TRAILER_BYTES, 48, 49, 1_000, longest - 1, longest];
    let length = lengths[number as usize % lengths.len()];
    (0..length)
        .map(|at| (at as u64 * 31 + number * 7) as u8)
        .collect()
}

fn put(producer: &mut Producer, packet: &[u8]) {
    producer.put(packet);
}

#[test]
fn packets_of_every_length_arrive_whole_and_in_order_over_many_rounds() {
    let memory = memory();
    let (mut data, mut control, _) = ends(&memory, End::Connector).unwrap();
    let (mut back, mut there, _) = ends(&memory, End::Acceptor).unwrap();
    let rings = [
        (&mut data, &mut there, DATA),
        (&mut back, &mut control, CONTROL),
    ];
    for (producer, consumer, shape) in rings {
        let longest = shape.packet_bytes_max;
        let (mut sent, mut received, mut fullest) = (0, 0, 0);
        while received < 2_000 {
            // As many as there is room for, then some out of it.
            while producer.has_packet_room().unwrap() {
                put(producer, &packet(sent, longest));
                sent += 1;
            }
            fullest = fullest.max(sent - received);
            for _ in 0..3 {
                let next = consumer.next().unwrap().expect("it was put there");
                let mut bytes = vec![0; next.bytes];
                consumer.copy_out(0, &mut bytes);
                assert!(bytes == packet(received, longest), "{received}");
                consumer.pass(next);
                received += 1;
            }
        }
        assert!(fullest > 10, "{fullest} packets in {} bytes", shape.bytes);
        while let Some(next) = consumer.next().unwrap() {
            consumer.pass(next);
        }
        assert!(producer.is_empty() && !consumer.is_ready());
    }
}

#[test]
fn a_chunk_of_any_packets_has_room_where_the_ring_says_so() {
    let memory = memory();
    let (mut producer, _, _) = ends(&memory, End::Connector).unwrap();
    let (_, mut consumer, _) = ends(&memory, End::Acceptor).unwrap();
    let packet = vec![7; PACKET_BYTES_MAX];
    for round in 0..5_000 {
        let count = [1, 2, 64][round % 3];
        let payload = (65_536 / count).min(PAYLOAD_BYTES);
        while !producer.has_room(Producer::CHUNK_ROOM).unwrap() {
            let next = consumer.next().unwrap().expect("the ring is full");
            consumer.pass(next);
        }
        for _ in 0..count {
            assert!(producer.has_packet_room().unwrap());
            producer.put(&packet[..payload + OVERHEAD_BYTES]);
        }
    }
}

#[test]
fn a_length_or_a_count_that_cannot_be_is_found() {
    for length in [1, 15, PACKET_BYTES_MAX as u64 + 1, 1 << 32, u64::MAX] {
        let memory = memory();
        let (_, consumer, _) = ends(&memory, End::Acceptor).unwrap();
        memory
            .write(DATA.start as u64, &length.to_le_bytes())
            .unwrap();
        assert_eq!(consumer.next(), Err(BadRing), "{length}");
    }
    for count in [1, u64::MAX] {
        let memory = memory();
        let (mut producer, _, _) = ends(&memory, End::Connector).unwrap();
        memory.write(0, &count.to_le_bytes()).unwrap();
        assert_eq!(producer.has_room(DATA.bytes + 1), Err(BadRing), "{count}");
    }
    // A count that goes back.
    let memory = memory();
    let (mut producer, _, _) = ends(&memory, End::Connector).unwrap();
    put(&mut producer, &[0; 64]);
    for (count, answer) in [(128u64, Ok(false)), (0, Err(BadRing))] {
        memory.write(0, &count.to_le_bytes()).unwrap();
        assert_eq!(producer.has_room(DATA.bytes + 1), answer);
    }
}

#[test]
fn who_wants_to_be_woken_for_one_thing_is_woken_for_that_and_once() {
    let memory = memory();
    let (_, _, here) = ends(&memory, End::Connector).unwrap();
    let (_, _, there) = ends(&memory, End::Acceptor).unwrap();
    assert!(!there.take(Wakeups::PACKETS));
    here.want(Wakeups::PACKETS);
    assert!(!there.take(Wakeups::ROOM) && !here.take(Wakeups::PACKETS));
    assert!(there.take(Wakeups::PACKETS) && !there.take(Wakeups::PACKETS));
    here.want(Wakeups::PACKETS | Wakeups::ROOM);
    assert!(there.take(Wakeups::ROOM) && !there.take(Wakeups::PACKETS));
}
