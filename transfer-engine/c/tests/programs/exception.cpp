// A callback that throws ends the program: no frame of the engine is unwound.
#include "check.h"

static void throws(void *, const weft_outcome *) {
    throw 1;
}

int main() {
    weft_engine *engine = start();
    weft_options options = patient();
    options.handler = throws;
    OK(weft_expect_imm_count(engine, 1, 0, &options, NULL));
    OK(weft_engine_close(engine));
    puts("exception: went on");
    return 0;
}
