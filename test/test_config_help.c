/*
test_config_help -- what `help` says: of every key, recipe and preset, of one name, and to a name
that is nothing.
*/
#include "config.h"
#include "config_parts.h"
#include "test.h"

/* What a call prints; caller frees. */
static char *printed_by(void (*print)(const char *), const char *argument) {
    const char *path = test_scratch("help.txt");
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    if (kept < 0 || !freopen(path, "w", stdout)) exit(1);
    print(argument);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    return read_text_file(path, "help", NULL);
}

static void print_markdown(const char *unused) {
    (void)unused;
    config_help_markdown();
}

CASE(help_names_every_key_recipe_and_preset) {
    char *texts[] = {printed_by(config_help, NULL), printed_by(print_markdown, NULL)};
    for (int t = 0; t < ARRAY_LEN(texts); t++) {
        for (int i = 0; i < num_config_keys; i++) {
            EXPECT(strstr(texts[t], config_keys[i].name), "%s", config_keys[i].name);
            EXPECT(strstr(texts[t], config_keys[i].help), "%s", config_keys[i].name);
        }
        for (int i = 0; i < num_recipes; i++) EXPECT(strstr(texts[t], recipes[i].summary));
        for (int i = 0; i < num_presets; i++) EXPECT(strstr(texts[t], presets[i].name));
        free(texts[t]);
    }
}

CASE(help_of_one_thing) {
    static const char *const asked[][2] = {
        {"optim.lr", "optim.lr: peak learning rate of AdamW\n  default  6e-4\n"
                     "  legal    above 0, up to 100\n  as in    llm.c -l, nanoGPT learning_rate\n"},
        {"guard", "guard.nan"},
        {"precision.keep_bf16", "precision.keep_bf16.last"},
        {"precision.rules", "  dither_bits    random bits a value in stochastic rounding; legal: "
                            "8, 16, 24\n"},
        {"precision.rules",
         "  layers         the linears whose names match; legal: names, numbers, "
         "ranges and * between dots, like blocks.10-11.*, up to 95 characters\n"},
        {"precision.wgrad", "; legal: 8, 16, 24\n"},
        {"precision.wgrad.x.hadamard", "the hadamard of operand x in wgrad, on every layer\n"
                                       "  legal    0, 4, 8, 16, 32, 64, 128\n"
                                       "  meaning  size of the transform"},
        {"dither_bits", "dither_bits, of a rule (`help precision.rules`): random bits a value in "
                        "stochastic rounding\n  legal    8, 16, 24\n"},
        {"layers", "the linears whose names match\n  legal    names, numbers"},
        {"rht16", "rht16, ht16: hadamard: after a transform of 16"},
        {"16x16T", "16x16T, e4m3T: T: the codes of fprop's operand, transposed"},
        {"1x32Q", "quantised again from the decoded values"},
        {"32x32T", "the codes of fprop's operand"},
        {"rht32/step", "drawn for each step"},
        {"quest", "by its standard deviation"},
        {"floor", "floor, ceil, even, quest, encode: scale_rule"},
        {"encode", "encode rounds the multiplier"},
        {"away", "ties away from zero"},
        {"eden", "MS-EDEN"},
        {"4/6:mse", "the better of two block scales"},
        {"zero:least", "what a block scale that rounds to 0 becomes"},
        {"amax:held", "one held for 50 steps"},
        {"outer128", "above the block scales"},
        {"top240", "another block scale for the tensor's maximum"},
        {"e4m3_block", "an FP32 scale for each 128"},
        {"f32 values", "BF16 does not hold these values exactly"},
        {"lr_decay", "when the learning rate begins to decay"},
        {"sqrt3", "signal is below sqrt(3) times their noise"},
        {"out_control", "precision.out_control.to "},
        {"sr24", "stochastic rounding by so many"},
        {"nemotron-1.2b", "model.kv_heads=8\n"},
        {"nvfp4", "  dgrad  dy nvfp4 1x16 sr8          w  nvfp4 16x16T          \n"
                  "  wgrad  dy nvfp4 1x16 rht16 sr8    x  nvfp4 1x16 rht16      \n"
                  "  the last 15 % of the blocks"},
        {"nvfp4", "  sr8, sr16, sr24  stochastic rounding"},
        {"precision", "  sr8, sr16, sr24  stochastic rounding"},
    };
    for (int i = 0; i < ARRAY_LEN(asked); i++) {
        char *text = printed_by(config_help, asked[i][0]);
        EXPECT(strstr(text, asked[i][1]), "%s:\n%s", asked[i][0], text);
        EXPECT_EQ_I64(config_help_knows(asked[i][0]), 1, "%s", asked[i][0]);
        free(text);
    }
    EXPECT_EQ_I64(config_help_knows("lr") || config_help_knows("") || config_help_knows("sr"), 0);
    EXPECT_DIES(EXIT_CONFIG,
                "there is no verb, key, group, preset, recipe, field of a rule or word of plans "
                "\"lr\"; did you mean \"optim.lr\"?",
                config_help("lr"));
    EXPECT_DIES(EXIT_CONFIG,
                "\"batch_size\"; did you mean \"batch.micro\" (llm.c -b, nanoGPT batch_size)?",
                config_help("batch_size"));
    EXPECT_DIES(EXIT_CONFIG, "\"blah\"; `help` lists all", config_help("blah"));
}

/* Each word that a plan of any recipe has is one that help knows. */
CASE(help_knows_the_words_of_plans) {
    for (int i = 0; i < num_recipes * NUM_GEMMS * NUM_SIDES; i++) {
        int cell = i % (NUM_GEMMS * NUM_SIDES);
        const Recipe *recipe = &recipes[i / (NUM_GEMMS * NUM_SIDES)];
        char text[128], *rest = text;
        operand_describe(&recipe->plan.cell[cell / NUM_SIDES][cell % NUM_SIDES], text,
                         sizeof(text));
        for (char *word = strsep(&rest, " "); word; word = strsep(&rest, " "))
            EXPECT_EQ_I64(config_help_knows(word), 1, "%s of %s", word, recipe->name);
    }
}

TEST_MAIN_END
