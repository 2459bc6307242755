/*
test_checkpoint_shards -- checkpoints in several files: what any number of ranks saves at any ZeRO
level comes back bit for bit to any other, in the form that other programs read, and is refused when
a shard is missing, damaged, of another step, or has what another has too.
*/
#include <cjson/cJSON.h>
#include <dirent.h>
#include <sys/stat.h>

#include "../llmc/checkpoint_state.h"
#include "../llmc/safetensors.h"
#include "checkpoint_ranks.h"

static const char *in_dir(const char *dir, const char *name) {
    static char path[1536];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

/* A fresh checkpoint of four ranks at a level; its own directory is returned. */
static char *saved_checkpoint(const char *name, int level) {
    TeamCase k = case_in(test_scratch(name));
    k.level = level;
    const char *problem = saved_by(&k, 4);
    EXPECT(!problem[0], "%s", problem);
    return checkpoint_find(k.dir);
}

static void load_alone(const char *path) {
    TeamCase k = case_in(path);
    team_load(NULL, &k);
}

// --- what is saved comes back ---

CASE(any_ranks_and_level_load_what_any_saved) {
    static const struct {
        int ranks, level;
        DType dtype;
    } saves[] = {{1, 0, DT_BF16}, {2, 0, DT_BF16}, {4, 0, DT_BF16}, {3, 1, DT_BF16},
                 {4, 2, DT_BF16}, {4, 3, DT_BF16}, {2, 3, DT_F32},  {4, 1, DT_F32}};
    static const struct {
        int ranks, level;
    } loads[] = {{1, 0}, {2, 0}, {3, 0}, {2, 1}, {3, 2}, {4, 3}, {3, 3}};
    for (int i = 0; i < ARRAY_LEN(saves); i++) {
        char name[32];
        snprintf(name, sizeof(name), "any%d", i);
        TeamCase k = case_in(test_scratch(name));
        k.level = saves[i].level;
        k.dtype = saves[i].dtype;
        const char *problem = saved_by(&k, saves[i].ranks);
        EXPECT(!problem[0], "%s", problem);
        char *path = checkpoint_find(k.dir);
        EXPECT_EQ_I64(num_faults(path), 0, "%d ranks, level %d", saves[i].ranks, saves[i].level);
        free(path);
        for (int j = 0; j < ARRAY_LEN(loads); j++)
            EXPECT_EQ_I64(wrong_for(&k, loads[j].ranks, loads[j].level), 0,
                          "saved by %d ranks at level %d, loaded by %d at %d", saves[i].ranks,
                          saves[i].level, loads[j].ranks, loads[j].level);
    }
}

/* Weights alone, as eval and sample read them: without a file of moments. */
CASE(weights_need_no_moments) {
    char *path = saved_checkpoint("weights", 1);
    char *shard = xstrdup(in_dir(path, "optimizer-00002-of-00004.safetensors"));
    unlink(shard);
    RankModel r;
    rank_model_open(&r, NULL, 0, DT_BF16);
    CheckpointState state = {0};
    checkpoint_load(path, &r.tensors, &state, 0);
    EXPECT_EQ_I64(state.step, 7);
    int64_t wrong = 0;
    for (int64_t e = 0; e < r.model.params.num_elements; e++)
        wrong += ((float *)r.model.params.master.data)[e] !=
                 (r.is_true[e] ? rank_model_value(0, e, 3) : 0);
    EXPECT_EQ_I64(wrong, 0);
    EXPECT_DIES(EXIT_DATA, "optimizer-00002-of-00004.safetensors: cannot open", load_alone(path));
    free(state.config);
    free(shard);
    free(path);
    rank_model_close(&r);
}

// --- the form ---

static cJSON *read_json(const char *path) {
    char *text = read_text_file(path, "test", NULL);
    cJSON *json = cJSON_Parse(text);
    free(text);
    return json;
}

/* Without ZeRO each tensor is whole in the file that the index names, as other programs expect. */
CASE(ranks_that_hold_all_save_whole_tensors) {
    char *path = saved_checkpoint("whole", 0);
    cJSON *index = read_json(in_dir(path, "model.safetensors.index.json"));
    const cJSON *map = cJSON_GetObjectItem(index, "weight_map"), *item;
    RankModel r;
    rank_model_open(&r, NULL, 0, DT_BF16);
    EXPECT_EQ_I64(cJSON_GetArraySize(map), r.model.params.count);
    double bytes =
        cJSON_GetObjectItem(cJSON_GetObjectItem(index, "metadata"), "total_size")->valuedouble;
    EXPECT_EQ_I64(bytes, 4 * param_table_true_count(&r.model.params));
    int files[4] = {0};
    cJSON_ArrayForEach(item, map) {
        int number = 0;
        REQUIRE(cJSON_IsString(item), "%s", item->string);
        EXPECT(sscanf(item->valuestring, "model-%05d-of-00004.safetensors", &number) == 1, "%s",
               item->valuestring);
        REQUIRE(number >= 1 && number <= 4, "%s", item->valuestring);
        files[number - 1]++;
        Safetensors *s = safetensors_open(in_dir(path, item->valuestring));
        const SafetensorsEntry *e = safetensors_find(s, item->string);
        const Param *p = param_table_find(&r.model.params, item->string);
        REQUIRE(e && p, "%s", item->string);
        EXPECT(e->rows == p->rows && e->cols == p->cols, "%s", item->string);
        EXPECT(strcmp(safetensors_metadata(s, "format"), "pt") == 0, "%s", item->string);
        safetensors_close(s);
    }
    for (int f = 0; f < 4; f++) EXPECT(files[f] > 0, "file %d is empty", f);
    cJSON_Delete(index);
    rank_model_close(&r);
    free(path);
}

/* With ZeRO a tensor may be cut; its shape and parts are in the index. */
CASE(parts_of_a_cut_tensor_are_listed) {
    char *path = saved_checkpoint("cut", 1);
    cJSON *index = read_json(in_dir(path, "optimizer.safetensors.index.json"));
    const cJSON *map = cJSON_GetObjectItem(index, "weight_map"), *item;
    int num_cut = 0;
    cJSON_ArrayForEach(item, map) {
        if (cJSON_IsString(item)) continue;
        const cJSON *shape = cJSON_GetObjectItem(item, "shape"), *part;
        double end = 0;
        cJSON_ArrayForEach(part, cJSON_GetObjectItem(item, "parts")) {
            Safetensors *s =
                safetensors_open(in_dir(path, cJSON_GetArrayItem(part, 0)->valuestring));
            const SafetensorsEntry *e = safetensors_find(s, item->string);
            REQUIRE(e, "%s", item->string);
            double begin = cJSON_GetArrayItem(part, 1)->valuedouble;
            EXPECT(begin == end, "%s", item->string);
            end = cJSON_GetArrayItem(part, 2)->valuedouble;
            EXPECT_EQ_I64(e->rows * e->cols, end - begin, "%s", item->string);
            safetensors_close(s);
        }
        EXPECT_EQ_I64(end, cJSON_GetArrayItem(shape, 0)->valuedouble *
                               cJSON_GetArrayItem(shape, 1)->valuedouble);
        num_cut++;
    }
    EXPECT(num_cut > 0, "no tensor is cut");
    cJSON_Delete(index);
    free(path);
}

static void expect_same_directory(const char *got, const char *want) {
    DIR *d = opendir(want);
    REQUIRE(d, "%s", want);
    int count = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        size_t a_bytes, b_bytes;
        char *a = read_text_file(in_dir(got, e->d_name), "test", &a_bytes);
        char *b = read_text_file(in_dir(want, e->d_name), "test", &b_bytes);
        EXPECT_EQ_I64(a_bytes, b_bytes, "%s", e->d_name);
        EXPECT_BITS(a, b, a_bytes < b_bytes ? a_bytes : b_bytes, "%s", e->d_name);
        free(a);
        free(b);
        count++;
    }
    closedir(d);
    EXPECT(count >= 3, "%d files", count);
}

/* While training changes what was saved. */
CASE(in_the_background_the_same_bytes) {
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        char name[2][48], path[2][1024];
        for (int background = 0; background < 2; background++) {
            snprintf(name[background], sizeof(name[0]), "background%d_%d", ranks, background);
            TeamCase k = case_in(test_scratch(name[background]));
            k.background = background;
            k.level = ranks > 1;
            const char *problem = saved_by(&k, ranks);
            EXPECT(!problem[0], "%s", problem);
            EXPECT_EQ_I64(wrong_for(&k, 2, 0), 0);
            snprintf(path[background], sizeof(path[0]), "%s/step_00000007", k.dir);
        }
        expect_same_directory(path[1], path[0]);
    }
}

// --- what does not fit is refused ---

static const char *const shard_files[] = {
    "model-00001-of-00004.safetensors",     "model-00004-of-00004.safetensors",
    "optimizer-00002-of-00004.safetensors", "model.safetensors.index.json",
    "optimizer.safetensors.index.json",     "state.json"};

CASE(a_missing_or_truncated_shard_is_named) {
    char *path = saved_checkpoint("missing", 1);
    for (int i = 0; i < ARRAY_LEN(shard_files); i++) {
        char *file = xstrdup(in_dir(path, shard_files[i]));
        size_t bytes;
        char *text = read_text_file(file, "test", &bytes);
        const size_t sizes[] = {bytes - 1, bytes / 2, 3, 0};
        for (int k = 0; k < ARRAY_LEN(sizes); k++) {
            test_put_file(file, text, sizes[k]);
            EXPECT_DIES(EXIT_DATA, shard_files[i], load_alone(path));
            EXPECT(num_faults(path) > 0, "%s cut to %zu", shard_files[i], sizes[k]);
        }
        unlink(file);
        EXPECT_DIES(EXIT_DATA, shard_files[i], load_alone(path));
        EXPECT(num_faults(path) > 0, "%s", shard_files[i]);
        test_put_file(file, text, bytes);
        free(text);
        free(file);
    }
    EXPECT_EQ_I64(num_faults(path), 0, "all is put back");
    free(path);
}

/* Each sum is computed by one rank, and all learn of it. */
static void load_as_team(const char *path, int ranks) {
    TeamCase k = case_in(path);
    team_run(ranks, team_load, &k);
}

CASE(a_flipped_bit_in_any_shard_is_found_by_any_number_of_ranks) {
    char *path = saved_checkpoint("flipped", 1);
    for (int i = 0; i < ARRAY_LEN(shard_files); i++) {
        char *file = xstrdup(in_dir(path, shard_files[i]));
        size_t bytes;
        char *text = read_text_file(file, "test", &bytes);
        const size_t places[] = {0, bytes / 3, bytes - 2};
        for (int k = 0; k < ARRAY_LEN(places); k++) {
            text[places[k]] ^= 4;
            test_put_file(file, text, bytes);
            EXPECT_DIES(EXIT_DATA, shard_files[i], load_as_team(path, 1 + (i + k) % 4));
            EXPECT(num_faults(path) > 0, "%s byte %zu", shard_files[i], places[k]);
            text[places[k]] ^= 4;
        }
        test_put_file(file, text, bytes);
        free(text);
        free(file);
    }
    load_as_team(path, 3);
    free(path);
}

CASE(a_shard_of_another_step_is_refused) {
    char *path = saved_checkpoint("steps", 1), name[1100];
    TeamCase k = case_in(test_scratch("steps"));
    k.step = 8;
    k.seed = 5;
    k.level = 1;
    saved_by(&k, 4);
    snprintf(name, sizeof(name), "%s/step_00000008/model-00003-of-00004.safetensors", k.dir);
    size_t bytes;
    char *text = read_text_file(name, "test", &bytes);
    test_put_file(in_dir(path, "model-00003-of-00004.safetensors"), text, bytes);
    EXPECT_DIES(EXIT_DATA, "model-00003-of-00004.safetensors: damaged: crc32", load_alone(path));
    EXPECT_EQ_I64(num_faults(path), 1);
    free(text);
    free(path);
}

static FileSum sum_of(const char *path) {
    size_t bytes;
    char *text = read_text_file(path, "test", &bytes);
    FileSum sum = {(int64_t)bytes, crc32_update(0, text, bytes)};
    free(text);
    return sum;
}

/* Writes state.json anew, with the sums that the files now have: a fault that no sum shows. */
static void sign_again(const char *path) {
    enum { MOST = 16 };
    FileRecord files[MOST];
    int count = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.' || strcmp(e->d_name, "state.json") == 0) continue;
        files[count++] = (FileRecord){xstrdup(e->d_name), sum_of(in_dir(path, e->d_name))};
    }
    closedir(d);
    CheckpointState state = {.step = 7, .position = 9, .tokens = 7, .config = "{}"};
    StateDraft *draft = state_draft(&state);
    char *text = state_draft_text(draft, files, count);
    test_put_file(in_dir(path, "state.json"), text, strlen(text));
    for (int i = 0; i < count; i++) free((char *)files[i].name);
    state_draft_free(draft);
    free(text);
}

/* The index's first cut tensor, and its parts. */
static cJSON *first_cut(cJSON *index) {
    cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(index, "weight_map")) {
        if (!cJSON_IsString(item)) return item;
    }
    return NULL;
}

typedef void (*Spoil)(cJSON *index, cJSON *cut);

static void overlap(cJSON *index, cJSON *cut) {
    (void)index;
    cJSON *begin = cJSON_GetArrayItem(cJSON_GetArrayItem(cJSON_GetObjectItem(cut, "parts"), 1), 1);
    cJSON_SetNumberValue(begin, begin->valuedouble - 1);
}

static void gap(cJSON *index, cJSON *cut) {
    (void)index;
    cJSON *begin = cJSON_GetArrayItem(cJSON_GetArrayItem(cJSON_GetObjectItem(cut, "parts"), 1), 1);
    cJSON_SetNumberValue(begin, begin->valuedouble + 1);
}

/* The first part ends later, where the second begins: more than its file has. */
static void later_border(cJSON *index, cJSON *cut) {
    (void)index;
    cJSON *parts = cJSON_GetObjectItem(cut, "parts");
    cJSON *end = cJSON_GetArrayItem(cJSON_GetArrayItem(parts, 0), 2);
    cJSON *begin = cJSON_GetArrayItem(cJSON_GetArrayItem(parts, 1), 1);
    cJSON_SetNumberValue(end, end->valuedouble + 1);
    cJSON_SetNumberValue(begin, begin->valuedouble + 1);
}

/* An element less than the files have. */
static void shorter_tensor(cJSON *index, cJSON *cut) {
    (void)index;
    cJSON *parts = cJSON_GetObjectItem(cut, "parts"), *shape = cJSON_GetObjectItem(cut, "shape");
    cJSON *end = cJSON_GetArrayItem(cJSON_GetArrayItem(parts, cJSON_GetArraySize(parts) - 1), 2);
    cJSON_SetNumberValue(cJSON_GetArrayItem(shape, 0), 1);
    cJSON_SetNumberValue(cJSON_GetArrayItem(shape, 1), end->valuedouble - 1);
    cJSON_SetNumberValue(end, end->valuedouble - 1);
}

static void lose_every_tensor(cJSON *index, cJSON *cut) {
    (void)cut;
    cJSON_ReplaceItemInObject(index, "weight_map", cJSON_CreateObject());
}

static void lose_last_part(cJSON *index, cJSON *cut) {
    (void)index;
    cJSON *parts = cJSON_GetObjectItem(cut, "parts");
    cJSON_DeleteItemFromArray(parts, cJSON_GetArraySize(parts) - 1);
}

static void lose_tensor(cJSON *index, cJSON *cut) {
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(index, "weight_map"), cut->string);
}

static void name_outside(cJSON *index, cJSON *cut) {
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(index, "weight_map"), cut->string,
                              cJSON_CreateString("../model.safetensors"));
}

static void huge_shape(cJSON *index, cJSON *cut) {
    (void)index;
    cJSON *shape = cJSON_GetObjectItem(cut, "shape");
    for (int i = 0; i < 2; i++) cJSON_SetNumberValue(cJSON_GetArrayItem(shape, i), 9e15);
}

static void other_shape(cJSON *index, cJSON *cut) {
    (void)index;
    cJSON *shape = cJSON_GetObjectItem(cut, "shape");
    double rows = cJSON_GetArrayItem(shape, 0)->valuedouble;
    cJSON_SetNumberValue(cJSON_GetArrayItem(shape, 0), cJSON_GetArrayItem(shape, 1)->valuedouble);
    cJSON_SetNumberValue(cJSON_GetArrayItem(shape, 1), rows);
}

/* In the file of its first part, as if that were all of it. */
static void whole_in_one(cJSON *index, cJSON *cut) {
    cJSON *part = cJSON_GetArrayItem(cJSON_GetObjectItem(cut, "parts"), 0);
    const char *file = cJSON_GetArrayItem(part, 0)->valuestring;
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(index, "weight_map"), cut->string,
                              cJSON_CreateString(file));
}

/* Cover without overlap, whatever the sums say. */
CASE(an_index_that_does_not_cover_is_refused) {
    static const struct {
        Spoil spoil;
        const char *says;
    } rows[] = {
        {overlap, "(gap or overlap)"},
        {gap, "(gap or overlap)"},
        {later_border, " or more"},
        {shorter_tensor, "elements, expected"},
        {lose_every_tensor, "no tensor in its \"weight_map\""},
        {lose_last_part, "end at element"},
        {lose_tensor, "tensors, the index has"},
        {name_outside, "is neither in one file nor in parts of a shape"},
        {huge_shape, "is neither in one file nor in parts of a shape"},
        {other_shape, "has shape"},
        {whole_in_one, "tensors, the index has"},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        char name[32];
        snprintf(name, sizeof(name), "cover%d", i);
        char *path = saved_checkpoint(name, 1);
        cJSON *index = read_json(in_dir(path, "model.safetensors.index.json"));
        cJSON *cut = first_cut(index);
        REQUIRE(cut, "nothing is cut");
        rows[i].spoil(index, cut);
        char *text = cJSON_Print(index);
        test_put_file(in_dir(path, "model.safetensors.index.json"), text, strlen(text));
        sign_again(path);
        EXPECT_DIES(EXIT_DATA, rows[i].says, load_alone(path));
        if (rows[i].spoil != other_shape) EXPECT(num_faults(path) > 0, "row %d", i);
        cJSON_free(text);
        cJSON_Delete(index);
        free(path);
    }
}

/* Rows that are in two files: one shard in the place of another, with the index and sums to match
   no more. */
CASE(rows_that_are_in_two_files_are_refused) {
    char *path = saved_checkpoint("twice", 0);
    size_t bytes;
    char *text = read_text_file(in_dir(path, "model-00001-of-00004.safetensors"), "test", &bytes);
    test_put_file(in_dir(path, "model-00002-of-00004.safetensors"), text, bytes);
    sign_again(path);
    EXPECT_DIES(EXIT_DATA, "model-00002-of-00004.safetensors: tensor", load_alone(path));
    EXPECT(num_faults(path) > 0);
    free(text);
    free(path);
}

CASE(another_model_is_refused_by_all) {
    char *path = saved_checkpoint("other", 1);
    RankModel r;
    CheckpointState state = {0};
    rank_model_open(&r, NULL, 0, DT_BF16);
    r.model.params.params[0].rows--;
    EXPECT_DIES(EXIT_DATA, "model.safetensors.index.json: tensor ",
                checkpoint_load(path, &r.tensors, &state, 1));
    r.model.params.params[0].rows++;
    snprintf(r.model.params.params[1].name, sizeof(r.model.params.params[1].name), "other");
    EXPECT_DIES(EXIT_DATA, "tensor other is missing", checkpoint_load(path, &r.tensors, &state, 1));
    rank_model_close(&r);
    free(path);
}

TEST_MAIN_END
