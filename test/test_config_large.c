/* test_config_large -- configs with more in them than anybody writes are refused, too, and soon. */
#include "../llmc/config.h"

#include "../llmc/common.h"
#include "test.h"

static char *put_config(const char *text, size_t bytes) {
    char *path = (char *)test_scratch("c.json");
    test_put_file(path, text, bytes);
    return path;
}

/* A comparison of each with each would take minutes. */
CASE(many_members_are_soon_refused) {
    enum { MEMBERS = 300000, BYTES = 12 };
    char *text = (char *)malloc(MEMBERS * BYTES + 3);
    text[0] = '{';
    for (int i = 0; i < MEMBERS; i++) sprintf(text + 1 + i * BYTES, "\"k%06d\":1%c", i, ',');
    text[MEMBERS * BYTES] = '}';
    Config c;
    char *args[] = {put_config(text, MEMBERS * BYTES + 1)};
    EXPECT_DIES(EXIT_CONFIG, "c.json:1:2: key \"k000000\" is unknown", config_parse(&c, 1, args));
    memcpy(text + MEMBERS * BYTES - 10, "k000007", 7);
    args[0] = put_config(text, MEMBERS * BYTES + 1);
    EXPECT_DIES(EXIT_CONFIG, "key \"k000007\" is given twice; the first is in line 1",
                config_parse(&c, 1, args));
    free(text);
}

TEST_MAIN_END
