/* run_idle -- keys without effect; see run_idle.h. */
#include "run_idle.h"

#include "common.h"

/* 1 where it holds of some linear in some phase. */
static int holds_somewhere(Model *m, int (*holds)(const Linear *l)) {
    for (int id = 0; id < model_num_linears(m); id++) {
        Linear l = *model_linear(m, id);
        for (int phase = 0; phase < m->num_phases; phase++) {
            l.plan = *model_plan(m, phase, id);
            if (holds(&l)) return 1;
        }
    }
    return 0;
}

static int quantises_weight(const Linear *l) {
    return operand_is_quantized(&l->plan.cell[GEMM_FPROP][SIDE_B]);
}

static void check_out_control(Run *r) {
    const Config *c = &r->config;
    if (c->precision.out_control.fraction == 0) return;
    if (!holds_somewhere(&r->model, linear_controls_channels))
        log_warn("precision.out_control.fraction is %g, which does nothing in this run: no linear "
                 "multiplies two quantised operands in fprop, beside which features would be "
                 "chosen",
                 c->precision.out_control.fraction);
    if (c->precision.out_control.to >= r->steps)
        die(EXIT_CONFIG,
            "config: precision.out_control.to is %lld, but the run has %lld steps: no step would "
            "come after the choice of features; legal: up to %lld, or set "
            "precision.out_control.fraction=0",
            (long long)c->precision.out_control.to, (long long)r->steps, (long long)r->steps - 1);
}

static void check_osci_reset(Run *r) {
    const Config *c = &r->config;
    int64_t start = c->precision.osci_reset.start, window = c->precision.osci_reset.window;
    if (start == 0) return;
    if (!holds_somewhere(&r->model, quantises_weight))
        log_warn("precision.osci_reset.start is %lld, which does nothing in this run: no linear "
                 "multiplies quantised weights in fprop, which could swing",
                 (long long)start);
    if (start + window >= r->steps)
        die(EXIT_CONFIG,
            "config: precision.osci_reset.start is %lld and window %lld: the first reset would "
            "come in step %lld, but the run has %lld; legal: start + window below %lld, or set "
            "precision.osci_reset.start=0",
            (long long)start, (long long)window, (long long)(start + window + 1),
            (long long)r->steps, (long long)r->steps);
}

/* Rows are divided before they are quantised, in whichever GEMM of down. */
static void check_smooth_swiglu(Run *r) {
    Model *m = &r->model;
    if (r->config.precision.smooth_swiglu == SMOOTH_NONE) return;
    for (int i = 0; i < m->num_branches; i++) {
        for (int phase = 0; phase < m->num_phases; phase++) {
            if (!m->blocks[i].smooth) continue;
            const LinearPlan *plan = model_plan(m, phase, m->blocks[i].out.id);
            for (int g = 0; g < NUM_GEMMS; g++)
                for (int s = 0; s < NUM_SIDES; s++)
                    if (operand_is_quantized(&plan->cell[g][s])) return;
        }
    }
    log_warn("precision.smooth_swiglu is %s, which changes nothing but roundings in this run: no "
             "operand of mlp.down is quantised",
             smoothing_names[r->config.precision.smooth_swiglu]);
}

void run_check_idle(Run *r) {
    check_out_control(r);
    check_osci_reset(r);
    check_smooth_swiglu(r);
}
