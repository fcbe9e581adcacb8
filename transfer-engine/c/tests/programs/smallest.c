#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

static void check(weft_status status) {
    if (status != WEFT_OK) {
        fprintf(stderr, "%s: %s\n", weft_status_name(status), weft_last_error());
        exit(1);
    }
}

int main(void) {
    weft_engine *receiver, *sender;
    check(weft_engine_start(NULL, &receiver));
    check(weft_engine_start(NULL, &sender));

    // The receiver opens 4 KiB to its peers. It sends the descriptor to them by any channel, as a string.
    weft_mr *there;
    check(weft_alloc(receiver, 4096, &there));
    const char *text = weft_mr_descriptor(there);

    // The sender registers memory of its own, and parses the string.
    char hello[] = "hello, weft";
    weft_mr *here;
    weft_descriptor *destination;
    check(weft_reg_mr(sender, hello, 11, WEFT_ACCESS_NONE, &here));
    check(weft_descriptor_parse(text, &destination));

    // It writes 11 bytes to offset 100. The write carries the immediate 7.
    weft_single_write write = {
        .source = here,
        .source_offset = 0,
        .destination = destination,
        .destination_offset = 100,
        .bytes = 11,
        .immediate = 7,
        .has_immediate = true,
    };
    weft_operation *written, *arrived;
    check(weft_submit_single_write(sender, &write, NULL, &written));

    // The receiver waits until one message with the immediate 7 has arrived: its bytes are there by then.
    check(weft_expect_imm_count(receiver, 7, 1, NULL, &arrived));
    weft_outcome outcome;
    check(weft_operation_wait(arrived, WEFT_NO_TIMEOUT, &outcome));
    printf("%s: %.11s\n", outcome.text, (const char *)weft_mr_address(there) + 100);

    // The sender waits for the write, then nothing refers to `hello` any more.
    check(weft_operation_wait(written, WEFT_NO_TIMEOUT, &outcome));
    check(weft_dereg_mr(here, WEFT_NO_TIMEOUT));
    check(weft_dereg_mr(there, WEFT_NO_TIMEOUT));

    weft_operation_free(written);
    weft_operation_free(arrived);
    weft_descriptor_free(destination);
    check(weft_engine_close(sender));
    check(weft_engine_close(receiver));
    return 0;
}
