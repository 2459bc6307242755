/*
test_config_words -- the config from the command line: what each mistake in a word, and between
keys, is answered with; and names that are found however they are written.
*/
#include "config.h"
#include "config_parts.h"
#include "test.h"

typedef struct {
    const char *words[3], *message;
} BadWords;

static const BadWords bad_words[] = {
    {{"optim.lrr=1"},
     "config: command line: key \"optim.lrr\" is unknown; did you mean "
     "\"optim.lr\"?"},
    {{"extends=a.json"}, "command line: key \"extends\" is unknown"},
    {{"model=3"}, "command line: key \"model\" is a group of keys; see `help model`"},
    {{"=3"}, "cannot open \"=3\""},
    {{"threads="}, "key \"threads\" is \"\", expected a whole number; legal: 0 to 4096"},
    {{"threads=0x10"}, "key \"threads\" is \"0x10\", expected a whole number"},
    {{"threads= 1"}, "key \"threads\" is \" 1\", expected"},
    {{"threads=1.5"}, "key \"threads\" is 1.5, expected a whole number"},
    {{"optim.lr=inf"}, "key \"optim.lr\" is \"inf\", expected a number"},
    {{"optim.lr=nan"}, "key \"optim.lr\" is \"nan\", expected a number"},
    {{"optim.lr=1e400"}, "key \"optim.lr\" is inf; legal"},
    {{"optim.lr=-1"}, "key \"optim.lr\" is -1; legal: above 0, up to 100"},
    {{"model.bias=yes"}, "key \"model.bias\" is \"yes\"; legal: true, false"},
    {{"optim.betas=0.9,0.95"}, "is not JSON: 0.9,0.95; expected a list of two numbers"},
    {{"precision.rules=[{\"gemm\":\"fprop\"}"}, "key \"precision.rules\" is not JSON"},
    {{"precision.rules=[{\"gemm\":\"fprop\",\"gemm\":\"dgrad\"}]"},
     "command line: key \"precision.rules[0].gemm\" is given twice"},
    {{"precision.rules=[{\"gemm\":\"prop\"}]"},
     "\"prop\" is not a GEMM; legal: fprop, dgrad, wgrad"},
    {{"precision.rules=[{\"operand\":\"dx\"}]"}, "\"dx\" is not an operand; legal: x, w, dy, *"},
    {{"precision.rules=[{}]"},
     "key \"precision.rules[0]\" changes nothing: it says where, but not what; give it a "
     "\"recipe\""},
    {{"precision.rules=[{\"format\":\"bf16\"},{\"layers\":\"blocks.0.*\",\"gemm\":\"dgrad\"}]"},
     "key \"precision.rules[1]\" changes nothing"},
    {{"precision.rules=[{\"format\":\"bf16\"},{\"gemm\":\"dgrad\",\"operand\":\"x\",\"rounding\":"
      "\"nearest\"}]"},
     "command line: key \"precision.rules[1]\" changes nothing: no such operand \"x\"; operands of "
     "dgrad: dy, w"},
    {{"precision.rules=[{\"layers\":\"\"}]"}, "\"\" is not a layer pattern; legal: names, numbers"},
    {{"precision.wgrad.x.hadamard=12"},
     "command line: key \"precision.wgrad.x.hadamard\" is refused"},
    {{"seed=12a"}, "key \"seed\" is \"12a\"; legal: 0 to 2^53 - 1"},
    {{"memory.recompute=blocks"},
     "key \"memory.recompute\" is \"blocks\"; legal: none, activation, norm, block"},
    {{"memory.recompute=true"}, "is \"true\"; legal: none, activation, norm, block"},
    {{"data.train=[3]"}, "key \"data.train[0]\" is a number, expected a path or glob"},
    {{"train.steps=1", "train.steps"}, "cannot open \"train.steps\""},
    // between keys
    {{"model.dim=100", "model.heads=8"},
     "model.dim is 100, not a multiple of model.heads 8; nearest: 96 or 104"},
    {{"model.kv_heads=5"}, "model.kv_heads is 5, not a divisor of model.heads 12"},
    {{"model.pos=rope", "model.head_dim=33"}, "model.head_dim is 33; model.pos rope"},
    {{"model.act=swiglu"}, "model.ffn is not given"},
    {{"model.act=relu2"}, "not for relu2"},
    {{"batch.micro=32768", "batch.seq_len=1048576"},
     "batch.micro 32768 x batch.seq_len 1048576 = 34359738368 tokens; legal: a micro-batch of less "
     "than 2^31 tokens"},
    {{"eval.micro=2048", "batch.seq_len=1048576"},
     "eval.micro 2048 x batch.seq_len 1048576 = 2147483648 tokens"},
    {{"model.pattern=*-M-"}, "model.pattern has 'M' at place 3; legal: * (attention) and - (MLP)"},
    {{"model.pattern=*-", "model.layers=3"}, "model.layers is 3, but model.pattern has 2 blocks"},
    {{"precision.recipe=f32"},
     "precision.recipe is f32 and model.dtype is bf16; f32 goes with f32 only: set model.dtype=f32 "
     "too, or another precision.recipe"},
    {{"model.dtype=f32"},
     "precision.recipe is bf16 and model.dtype is f32; f32 goes with f32 only: set "
     "precision.recipe=f32 too, or another model.dtype"},
    {{"model.dtype=f32", "precision.recipe=f32", "device=cuda"}, "runs on the CPU only"},
    {{"precision.keep_bf16.first=10", "precision.keep_bf16.last=3"},
     "precision.keep_bf16.first 10 and precision.keep_bf16.last 3 are more than the 12 blocks"},
    {{"sched.warmup_steps=10", "train.steps=10"},
     "sched.warmup_steps is 10; legal: less than train.steps 10"},
    {{"log.dir="}, "log.dir is empty"},
    {{"log.dir=no/run", "log.reference=no/run/"},
     "log.reference no/run/ is the run's own log.dir; set log.reference to the log.dir of another"},
    {{"log.dir=/tmp", "log.reference=/usr/../tmp/."}, "log.reference /usr/../tmp/. is the run's"},
    {{"log.reference_warn=3"},
     "log.reference_warn is 3, but log.reference is not set: there is no gap to warn of; set "
     "log.reference"},
};

CASE(bad_words) {
    for (int i = 0; i < ARRAY_LEN(bad_words); i++) {
        const BadWords *bad = &bad_words[i];
        int count = 0, failures = test_state.failures;
        while (count < ARRAY_LEN(bad->words) && bad->words[count]) count++;
        Config c;
        EXPECT_DIES(EXIT_CONFIG, bad->message, config_parse(&c, count, (char **)bad->words));
        if (test_state.failures > failures) printf("  for the word %s\n", bad->words[0]);
    }
}

CASE(another_run_is_a_reference) {
    char *args[] = {"log.dir=no/run", "log.reference=no/runs", "log.reference_warn=3"};
    Config c;
    config_parse(&c, ARRAY_LEN(args), args);
    EXPECT(c.log.reference_warn == 3 && strcmp(c.log.reference, "no/runs") == 0, "%s",
           c.log.reference);
    config_free(&c);
}

CASE(the_largest_micro_batch_is_accepted) {
    char *args[] = {"batch.micro=2047", "batch.seq_len=1048576"};
    Config c;
    config_parse(&c, 2, args);
    EXPECT_EQ_I64(c.eval.micro, 2047);
    config_free(&c);
}

/* --- names that differ in case, spaces and dashes only --- */

CASE(choices_are_found_however_they_are_written) {
    static const struct {
        char *word;
        DeviceModel device;
    } rows[] = {
        {"plan.device=rtx5090", DEVICE_MODEL_RTX_5090},
        {"plan.device=b200", DEVICE_MODEL_B200},
        {"plan.device=rtx pro 6000", DEVICE_MODEL_RTX_PRO_6000},
        {"plan.device=RTX-PRO_6000", DEVICE_MODEL_RTX_PRO_6000},
        {"plan.device=RTX 5090", DEVICE_MODEL_RTX_5090},
    };
    Config c;
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        char *args[] = {rows[i].word};
        config_parse(&c, 1, args);
        EXPECT_EQ_I64(c.plan.device, rows[i].device, "%s", rows[i].word);
        config_free(&c);
    }
    char *mixed[] = {"precision.gemm=MMA", "sched.type=Cosine", "precision.backend=Emulate",
                     "precision.stochastic=Hardware"};
    config_parse(&c, ARRAY_LEN(mixed), mixed);
    EXPECT_EQ_I64(c.precision.stochastic, STOCHASTIC_HARDWARE, "%s", mixed[3]);
    char *json = config_to_json(&c);
    EXPECT(strstr(json, "\"mma\"") && strstr(json, "\"cosine\"") && strstr(json, "\"emulate\""),
           "%s", json);
    free(json);
    config_free(&c);
    static char *const refused[] = {"plan.device=rtx509", "plan.device=-", "plan.device=B2000",
                                    "precision.recipe=NVFP4"};
    for (int i = 0; i < ARRAY_LEN(refused); i++) {
        char *args[] = {refused[i]};
        EXPECT_DIES(EXIT_CONFIG, "; legal: ", config_parse(&c, 1, args));
    }
}

/* Else a name would stand for the first of two choices. */
CASE(no_two_choices_are_alike) {
    for (int k = 0; k < num_config_keys; k++) {
        const ConfigKey *key = &config_keys[k];
        for (int i = 0; key->kind == KIND_ENUM && config_choice(key, i); i++) {
            cJSON *choice = cJSON_CreateString(config_choice(key, i));
            Config c;
            Where w;
            int value;
            memset(&w, 0, sizeof(w));
            config_set(&c, key, choice, &w);
            memcpy(&value, (char *)&c + key->offset, sizeof(value));
            EXPECT_EQ_I64(value, i, "%s=%s", key->name, config_choice(key, i));
            cJSON_Delete(choice);
        }
    }
}

TEST_MAIN_END
