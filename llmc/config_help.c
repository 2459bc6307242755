/*
config_help -- the tables of config as text for users: on the terminal, and as Markdown for README.
No key, default or range is written here a second time.
*/
#include <string.h>

#include "config_parts.h"

// In the order they are shown; "" stands for keys without a group.
static const struct {
    const char *name, *title;
} groups[] = {
    {"model", "shape of the network"},
    {"data", "what is read"},
    {"batch", "sequences of a step"},
    {"train", "length of the run"},
    {"optim", "AdamW"},
    {"sched", "learning rate over the steps"},
    {"precision", "number formats of matrix products"},
    {"parallel", "several ranks"},
    {"memory", "memory against time"},
    {"eval", "validation"},
    {"ckpt", "checkpoints"},
    {"guard", "steps that are skipped"},
    {"log", "records of the run"},
    {"sample", "text from the model"},
    {"plan", "what the verb plan predicts"},
    {"", "device and seed"},
};

static int in_group(const ConfigKey *key, const char *group) {
    size_t length = strlen(group);
    if (length == 0) return strchr(key->name, '.') == NULL;
    return strncmp(key->name, group, length) == 0 && key->name[length] == '.';
}

static const char *default_text(const ConfigKey *key) {
    return key->initial[0] ? key->initial : "\"\"";
}

/* Words of values that are no names of keys. */
static const RecipeWord moments[] = {
    {"lr_decay",
     "\"at\" of precision.schedule: when the learning rate begins to decay (sched.type)"},
    {"sqrt3",
     "\"at\" of precision.schedule: once the gradients' signal is below sqrt(3) times their "
     "noise, which log.gradient_noise measures every log.telemetry_every steps"},
};

/* --- terminal --- */

static void print_keys(const char *group) {
    int width = 26;
    for (int i = 0; i < num_config_keys; i++)
        if (in_group(&config_keys[i], group))
            width = (int)max_i64(width, (int64_t)strlen(config_keys[i].name));
    for (int i = 0; i < num_config_keys; i++) {
        const ConfigKey *key = &config_keys[i];
        if (!in_group(key, group)) continue;
        printf("  %-*s %-12s %s\n", width, key->name, default_text(key), key->help);
    }
}

static void print_recipes(void) {
    for (int i = 0; i < num_recipes; i++) {
        printf("  %-22s %s\n", recipes[i].name, recipes[i].summary);
    }
}

static void print_presets(void) {
    for (int i = 0; i < num_presets; i++) {
        printf("  %-18s %s\n", presets[i].name, presets[i].summary);
    }
}

/* What rule_set says to an empty value ends in what is legal. */
static const char *rule_legal(const char *key) {
    Rule scratch = rule_default();
    const char *message = rule_set(&scratch, key, "");
    CHECK(message, "rule key %s takes an empty value", key);
    const char *legal = strstr(message, "legal: ");
    return legal ? legal + strlen("legal: ") : message;
}

static void print_rules(void) {
    printf("keys of a rule; a rule without layers, gemm or operand means all of them\n");
    for (int i = 0; rule_key(i); i++) {
        printf("  %-14s %s; legal: %s\n", rule_key(i), rule_help(rule_key(i)),
               rule_legal(rule_key(i)));
    }
    printf("precision.GEMM.OPERAND.KEY=VALUE is the same as a rule at the end, on every layer;\n"
           "GEMMs and their operands:");
    for (int g = 0; g < NUM_GEMMS; g++) {
        printf(" %s (%s, %s)", gemm_names[g], operand_names[g][SIDE_A], operand_names[g][SIDE_B]);
    }
    printf("\n");
}

static void print_notation(void) {
    printf("operands in plans and recipes\n");
    for (int i = 0; recipe_word(i); i++)
        printf("  %-16s %s\n", recipe_word(i)->text, recipe_word(i)->meaning);
}

static void help_all(void) {
    printf(
        "A later source wins: defaults, model.preset, files named by \"extends\" in a file, "
        "files, KEY=VALUE.\n`help NAME` of a verb, key, group, preset, recipe, field of a rule or "
        "word of plans tells more.\n");
    for (int g = 0; g < ARRAY_LEN(groups); g++) {
        printf("\n%s%s%s\n", groups[g].name, groups[g].name[0] ? ": " : "", groups[g].title);
        print_keys(groups[g].name);
    }
    printf("\nprecision.recipe\n");
    print_recipes();
    printf("\nmodel.preset\n");
    print_presets();
}

/* --- one name: each of these returns 0 where it is nothing of its kind, and prints if asked --- */

static int help_key(const char *name, int print) {
    const ConfigKey *key = config_key_find(name);
    char legal[512];
    if (!key || !print) return key != NULL;
    printf("%s: %s\n", key->name, key->help);
    printf("  default  %s\n", default_text(key));
    printf("  legal    %s\n", config_legal(key, legal, sizeof(legal)));
    if (key->elsewhere) printf("  as in    %s\n", key->elsewhere);
    if (key->kind == KIND_RECIPE) print_recipes();
    if (key->kind == KIND_RULES || key->kind == KIND_SCHEDULE) print_rules();
    if (key->kind == KIND_PRESET) print_presets();
    return 1;
}

static int help_preset(const char *name, int print) {
    const Preset *preset = preset_find(name);
    if (!preset || !print) return preset != NULL;
    printf("model.preset=%s: %s\n", preset->name, preset->summary);
    for (const char *word = preset->settings; *word;) {
        int length = (int)strcspn(word, " ");
        printf("  %.*s\n", length, word);
        word += length + (word[length] == ' ');
    }
    return 1;
}

/* Of the operands' column. */
static int recipe_width(const Recipe *recipe) {
    int width = 22;
    for (int i = 0; i < NUM_GEMMS * NUM_SIDES; i++) {
        char text[96];
        operand_describe(&recipe->plan.cell[i / NUM_SIDES][i % NUM_SIDES], text, sizeof(text));
        width = (int)max_i64(width, (int64_t)strlen(text));
    }
    return width;
}

static int help_recipe(const char *name, int print) {
    const Recipe *recipe = recipe_find(name);
    if (!recipe || !print) return recipe != NULL;
    printf("precision.recipe=%s: %s\n", recipe->name, recipe->summary);
    for (int g = 0; g < NUM_GEMMS; g++) {
        printf("  %s", gemm_names[g]);
        for (int s = 0; s < NUM_SIDES; s++) {
            char text[96];
            operand_describe(&recipe->plan.cell[g][s], text, sizeof(text));
            printf("  %-2s %-*s", operand_names[g][s], recipe_width(recipe), text);
        }
        printf("\n");
    }
    if (recipe->keep_last_frac > 0) {
        printf("  the last %.0f %% of the blocks, at least one, stay in BF16 "
               "(precision.keep_bf16.last)\n",
               100 * recipe->keep_last_frac);
    }
    print_notation();
    return 1;
}

static int help_cell_key(const char *name, int print) {
    GemmKind gemm;
    const char *operand, *field;
    if (!config_cell_key(name, &gemm, &operand, &field)) return 0;
    if (!print) return 1;
    printf("%s: the %s of operand %s in %s, on every layer\n", name, field, operand,
           gemm_names[gemm]);
    printf("  legal    %s\n  meaning  %s\n", rule_legal(field), rule_help(field));
    return 1;
}

static int help_group(const char *name, int print) {
    if (!config_is_group(name) || !print) return config_is_group(name);
    print_keys(name);
    if (strncmp(name, "precision", strlen("precision")) != 0) return 1;
    print_rules();
    print_notation();
    return 1;
}

static int help_rule_field(const char *name, int print) {
    int i = 0;
    while (rule_key(i) && strcmp(rule_key(i), name) != 0) i++;
    if (!rule_key(i)) return 0;
    if (!print) return 1;
    printf("%s, of a rule (`help precision.rules`): %s\n  legal    %s\n", name, rule_help(name),
           rule_legal(name));
    return 1;
}

/* 1 where a word is the name; with `any_number` also where only their numbers differ. */
static int is_word(const char *name, const char *word, size_t length, int any_number) {
    const char *end = word + length;
    while (word < end && *name) {
        size_t digits = strspn(word, "0123456789"), others = strspn(name, "0123456789");
        if (any_number && digits > 0 && others > 0) {
            word += digits;
            name += others;
        } else if (*word++ != *name++) {
            return 0;
        }
    }
    return word == end && *name == '\0';
}

/* The name is one of the words of a text, "rht16" of "rht16, ht16". */
static int help_word(const RecipeWord *row, const char *name, int any_number, int print) {
    for (const char *word = row->text; *word;) {
        size_t length = strcspn(word, ",");
        int found = is_word(name, word, length, any_number);
        if (found && print) printf("%s: %s\n", row->text, row->meaning);
        if (found) return 1;
        word += length + strspn(word + length, ", ");
    }
    return 0;
}

static int help_notation(const char *name, int print) {
    for (int i = 0; i < ARRAY_LEN(moments); i++)
        if (help_word(&moments[i], name, 0, print)) return 1;
    for (int any_number = 0; any_number < 2; any_number++)
        for (int i = 0; recipe_word(i); i++)
            if (help_word(recipe_word(i), name, any_number, print)) return 1;
    return 0;
}

/* "out_control" of precision.out_control. */
static int help_subgroup(const char *name, int print) {
    char whole[96];
    snprintf(whole, sizeof(whole), "precision.%s", name);
    return *name && help_group(whole, print);
}

static int help_name(const char *name, int print) {
    static int (*const kinds[])(const char *name, int print) = {
        help_key,   help_preset,     help_recipe,   help_cell_key,
        help_group, help_rule_field, help_notation, help_subgroup};
    for (int i = 0; i < ARRAY_LEN(kinds); i++) {
        if (kinds[i](name, print)) return 1;
    }
    return 0;
}

int config_help_knows(const char *name) { return help_name(name, 0); }

void config_help(const char *name) {
    if (!name) {
        help_all();
    } else if (!help_name(name, 1)) {
        char suggestion[256];
        die(EXIT_CONFIG,
            "help: there is no verb, key, group, preset, recipe, field of a rule or word of plans "
            "\"%s\"%s",
            name, config_suggestion(name, suggestion, sizeof(suggestion)));
    }
}

/* --- Markdown --- */

/* A cell of a table: | would end it. */
static void print_cell(const char *text) {
    for (; *text; text++) printf(*text == '|' ? "\\|" : "%c", *text);
}

static void markdown_key(const ConfigKey *key) {
    char legal[512];
    printf("| `%s` | `%s` | ", key->name, default_text(key));
    print_cell(config_legal(key, legal, sizeof(legal)));
    printf(" | ");
    print_cell(key->help);
    printf(" | %s |\n", key->elsewhere ? key->elsewhere : "");
}

void config_help_markdown(void) {
    for (int g = 0; g < ARRAY_LEN(groups); g++) {
        const char *name = groups[g].name;
        printf("%s### %s%s%s\n\n", g ? "\n" : "", name, name[0] ? ": " : "", groups[g].title);
        printf("| key | default | legal | meaning | elsewhere |\n|---|---|---|---|---|\n");
        for (int i = 0; i < num_config_keys; i++) {
            if (in_group(&config_keys[i], name)) markdown_key(&config_keys[i]);
        }
    }
    printf("\n### Keys of a rule in `precision.rules`\n\n| key | legal | meaning |\n"
           "|---|---|---|\n");
    for (int i = 0; rule_key(i); i++) {
        printf("| `%s` | ", rule_key(i));
        print_cell(rule_legal(rule_key(i)));
        printf(" | %s |\n", rule_help(rule_key(i)));
    }
    printf("\n### Recipes\n\n| `precision.recipe` | |\n|---|---|\n");
    for (int i = 0; i < num_recipes; i++) {
        printf("| `%s` | %s |\n", recipes[i].name, recipes[i].summary);
    }
    printf("\n### Operands in plans\n\n| | |\n|---|---|\n");
    for (int i = 0; recipe_word(i); i++)
        printf("| `%s` | %s |\n", recipe_word(i)->text, recipe_word(i)->meaning);
    printf("\n### Presets\n\n| `model.preset` | |\n|---|---|\n");
    for (int i = 0; i < num_presets; i++) {
        printf("| `%s` | %s |\n", presets[i].name, presets[i].summary);
    }
}
