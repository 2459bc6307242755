/*
test_safetensors -- files byte for byte, and what a reader that trusts nothing says of damaged ones.
*/
#include "../llmc/safetensors.h"

#include "../llmc/common.h"
#include "test.h"

static const float pi_e[2] = {3.140625f, 2.71875f};

static FileSum write_small(const char *path) {
    SafetensorsWriter *w = safetensors_create(path, "ckpt.dir");
    safetensors_add_metadata(w, "format", "pt");
    safetensors_declare(w, "b", DT_F32, 1, 2);
    safetensors_declare(w, "a.weight", DT_BF16, 2, 1);
    const bf16_t halves[2] = {bf16_from_f32(0.5f), bf16_from_f32(-2.0f)};
    safetensors_write(w, pi_e, 3);   // pieces need not match tensors
    safetensors_write(w, (const char *)pi_e + 3, 5);
    safetensors_write(w, halves, 4);
    return safetensors_finish(w);
}

// clang-format off
static const char SMALL_HEADER[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
    "\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[8,12]}}";
// clang-format on
static const uint8_t small_data[12] = {0, 0, 0x49, 0x40, 0, 0, 0x2E, 0x40, 0, 0x3F, 0, 0xC0};

CASE(written_byte_for_byte) {
    const char *path = test_scratch("small.safetensors");
    FileSum sum = write_small(path);
    size_t bytes, header = (size_t)round_up((int64_t)strlen(SMALL_HEADER), 8);
    char *text = read_text_file(path, "test", &bytes);
    REQUIRE(bytes == 8 + header + 12, "%zu bytes", bytes);
    uint8_t length[8] = {(uint8_t)header};
    EXPECT_BITS(text, length, 8);
    EXPECT_BITS(text + 8, SMALL_HEADER, strlen(SMALL_HEADER));
    for (size_t i = strlen(SMALL_HEADER); i < header; i++) EXPECT(text[8 + i] == ' ', "%zu", i);
    EXPECT_BITS(text + 8 + header, small_data, 12);
    EXPECT_EQ_I64(sum.bytes, bytes);
    EXPECT_EQ_I64(sum.crc, crc32_update(0, text, bytes));
    free(text);
}

CASE(reads_what_it_wrote) {
    const char *path = test_scratch("small.safetensors");
    write_small(path);
    Safetensors *s = safetensors_open(path);
    EXPECT_EQ_I64(s->count, 2);
    EXPECT(strcmp(safetensors_metadata(s, "format"), "pt") == 0);
    EXPECT(safetensors_metadata(s, "absent") == NULL);
    EXPECT(safetensors_find(s, "absent") == NULL);
    const SafetensorsEntry *a = safetensors_find(s, "a.weight"), *b = safetensors_find(s, "b");
    REQUIRE(a && b);
    EXPECT(a->dtype == DT_BF16 && a->rank == 2 && a->rows == 2 && a->cols == 1 && a->bytes == 4);
    EXPECT(b->dtype == DT_F32 && b->rank == 1 && b->rows == 1 && b->cols == 2 && b->bytes == 8);
    EXPECT_BITS(b->data, pi_e, 8);
    EXPECT_BITS(a->data, small_data + 8, 4);
    safetensors_close(s);
}

static void put_safetensors(const char *path, const char *header, size_t data_bytes) {
    static uint8_t file[4096];
    size_t length = strlen(header);
    memset(file, 0, sizeof(file));
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)length >> 8 * i);
    memcpy(file + 8, header, length);
    test_put_file(path, file, 8 + length + data_bytes);
}

/* What the reader says of a file, or "" if it takes it. */
static const char *problem_of(const char *path) {
    static char text[1024];
    char *problem;
    Safetensors *s = safetensors_try_open(path, &problem);
    snprintf(text, sizeof(text), "%s", s ? "" : problem);
    if (s) safetensors_close(s);
    else free(problem);
    return text;
}

CASE(other_writers_may_do) {
    static const char *const good[] = {
        "{}",
        "{}     ",
        "{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
        "{\"x\":{\"shape\":[1,1,1],\"data_offsets\":[0,4],\"dtype\":\"F32\"}}",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[4,4]},"
        "\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
    };
    for (int i = 0; i < ARRAY_LEN(good); i++) {
        const char *path = test_scratch("good.safetensors");
        put_safetensors(path, good[i], i < 2 ? 0 : 4);
        EXPECT(problem_of(path)[0] == '\0', "%s: %s", good[i], problem_of(path));
    }
}

CASE(bad_headers_are_named) {
    static const struct {
        const char *header, *problem;
    } bad[] = {
        {"[]", "not a JSON object"},
        {"{\"x\":", "not a JSON object"},
        {"{} {}", "more than one JSON value"},
        {"{\"__metadata__\":{\"a\":1}}", "not an object of strings"},
        {"{\"__metadata__\":\"a\"}", "not an object of strings"},
        {"{\"x\":4}", "tensor x: not an object"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", "tensor x: not an object"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1]}}", "data_offsets"},
        {"{\"x\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", "dtype 'F99'"},
        {"{\"x\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", "dtype missing"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", "no shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "impossible shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", "impossible shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}",
         "impossible shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}",
         "impossible shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", "two rising numbers"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", "two rising numbers"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", "two rising numbers"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1e300]}}",
         "two rising numbers"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "truncated"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
         "4 bytes in the file, 8 by its shape"},
        {"{}", "4 bytes after the last tensor"},
        {"{\"x\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[2,4]}}", "gap or overlap"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"y\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[2,4]}}",
         "gap or overlap"},
        {"{\"x\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]},"
         "\"x\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[2,4]}}",
         "tensor x is there twice"},
    };
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        const char *path = test_scratch("bad.safetensors");
        put_safetensors(path, bad[i].header, 4);
        EXPECT(strstr(problem_of(path), bad[i].problem), "%s: '%s'", bad[i].header,
               problem_of(path));
    }
    EXPECT_DIES(EXIT_DATA, "absent.safetensors",
                safetensors_open(test_scratch("absent.safetensors")));
    EXPECT(strstr(problem_of(test_temp_dir()), "not a regular file"));
}

CASE(truncated_anywhere_is_refused) {
    const char *whole = test_scratch("small.safetensors"), *cut = test_scratch("cut.safetensors");
    write_small(whole);
    size_t bytes;
    char *text = read_text_file(whole, "test", &bytes);
    for (size_t n = 0; n < bytes; n++) {
        test_put_file(cut, text, n);
        EXPECT(problem_of(cut)[0] != '\0', "cut to %zu bytes", n);
    }
    free(text);
}

/* That nothing outside of the file is read: the sanitizers watch, and each entry is touched. */
CASE(random_damage_is_survived) {
    const char *whole = test_scratch("small.safetensors"), *hurt = test_scratch("hurt.safetensors");
    write_small(whole);
    size_t bytes;
    char *text = read_text_file(whole, "test", &bytes);
    uint32_t random = 12345;
    int refused = 0;
    for (int trial = 0; trial < 1000; trial++) {
        char *copy = (char *)xmalloc(bytes);
        memcpy(copy, text, bytes);
        for (int flips = trial % 3; flips >= 0; flips--) {
            random = random * 1664525u + 1013904223u;
            copy[(random >> 8) % (bytes - 12)] ^= (char)(1 << (random >> 29));
        }
        test_put_file(hurt, copy, bytes);
        free(copy);
        char *problem;
        Safetensors *s = safetensors_try_open(hurt, &problem);
        refused += s == NULL;
        free(problem);
        for (int i = 0; s && i < s->count; i++) {
            crc32_update(0, s->entries[i].data, s->entries[i].bytes);
        }
        if (s) safetensors_close(s);
    }
    EXPECT(refused > 600, "%d of 1000", refused);
    free(text);
}

CASE(a_full_disk_is_named) {
    EXPECT_DIES(EXIT_DATA, "ckpt.dir: cannot write '/dev/full' after 0 bytes: No space left",
                write_small("/dev/full"));
}

CASE(less_data_than_declared_is_a_programmer_error) {
    EXPECT_ABORTS("8 bytes written, 12 declared", {
        SafetensorsWriter *w = safetensors_create(test_scratch("short"), "ckpt.dir");
        safetensors_declare(w, "x", DT_F32, 1, 3);
        safetensors_write(w, pi_e, 8);
        safetensors_finish(w);
    });
}

TEST_MAIN_END
