"""One rule: layers compute a replica's own rows, everything else sees the whole batch.

    with in_step(Step(model, batch)) as step:          # in a replica's function
        logs = model.train_step(step.data)             # as it is written for one device

Every replica runs the step of one device. Only an outermost layer call is cut: own rows go in, and
what comes out is put together. TensorFlow's gradient of that adds up what all replicas ask for,
so the mean of the replicas' gradients is the gradient of the whole batch, whatever the loss is.
"""
